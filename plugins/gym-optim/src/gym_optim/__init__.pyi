# The public names with their types, for type checkers; `__init__.py` imports them on first use.
from gym_optim.in_backward import InBackward as InBackward
from gym_optim.optimizers.adafactor import Adafactor as Adafactor
from gym_optim.optimizers.adalomo import adalomo as adalomo
from gym_optim.optimizers.adam_mini import AdamMini as AdamMini
from gym_optim.optimizers.adamw import AdamW as AdamW
from gym_optim.optimizers.adamw_8bit import AdamW8bit as AdamW8bit
from gym_optim.optimizers.apollo import APOLLO as APOLLO
from gym_optim.optimizers.apollo_mini import APOLLOMini as APOLLOMini
from gym_optim.optimizers.badam import BAdam as BAdam
from gym_optim.optimizers.fira import Fira as Fira
from gym_optim.optimizers.galore import GaLore as GaLore
from gym_optim.optimizers.lion import Lion as Lion
from gym_optim.optimizers.lisa import LISA as LISA
from gym_optim.optimizers.lomo import lomo as lomo
from gym_optim.optimizers.lora_plus import lora_plus as lora_plus
from gym_optim.optimizers.lora_plus import lora_plus_groups as lora_plus_groups
from gym_optim.optimizers.lora_pro import LoRAPro as LoRAPro
from gym_optim.optimizers.muon import Muon as Muon
from gym_optim.optimizers.paged_adamw_8bit import paged_adamw_8bit as paged_adamw_8bit
from gym_optim.optimizers.q_galore import QGaLore as QGaLore
from gym_optim.optimizers.schedule_free_adamw import Averaging as Averaging
from gym_optim.optimizers.schedule_free_adamw import ScheduleFreeAdamW as ScheduleFreeAdamW
from gym_optim.optimizers.sgd import SGD as SGD
from gym_optim.optimizers.soap import SOAP as SOAP
from gym_optim.param_groups import parameter_groups as parameter_groups

__version__: str
