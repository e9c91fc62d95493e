# The public names with their types, for type checkers; `__init__.py` imports them on first use.
from gym_optim.adafactor import Adafactor as Adafactor
from gym_optim.adam_mini import AdamMini as AdamMini
from gym_optim.apollo import APOLLO as APOLLO
from gym_optim.apollo import APOLLOMini as APOLLOMini
from gym_optim.blockwise import LISA as LISA
from gym_optim.blockwise import BAdam as BAdam
from gym_optim.fira import Fira as Fira
from gym_optim.galore import GaLore as GaLore
from gym_optim.groups import parameter_groups as parameter_groups
from gym_optim.in_backward import InBackward as InBackward
from gym_optim.in_backward import adalomo as adalomo
from gym_optim.in_backward import lomo as lomo
from gym_optim.lion import Lion as Lion
from gym_optim.lora import LoRAPro as LoRAPro
from gym_optim.lora import lora_plus as lora_plus
from gym_optim.lora import lora_plus_groups as lora_plus_groups
from gym_optim.muon import Muon as Muon
from gym_optim.paged import paged_adamw_8bit as paged_adamw_8bit
from gym_optim.q_galore import QGaLore as QGaLore
from gym_optim.quantized import AdamW8bit as AdamW8bit
from gym_optim.schedule_free import Averaging as Averaging
from gym_optim.schedule_free import ScheduleFreeAdamW as ScheduleFreeAdamW
from gym_optim.soap import SOAP as SOAP

__version__: str
