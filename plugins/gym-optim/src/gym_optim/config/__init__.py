"""The optimizers and schedules as a recipe sees them: options, defaults, documentation. Nothing heavy."""

from gym_optim.config.adafactor import Adafactor
from gym_optim.config.adalomo import AdaLomo
from gym_optim.config.adam_mini import AdamMini
from gym_optim.config.adamw import AdamW
from gym_optim.config.adamw_8bit import AdamW8bit
from gym_optim.config.apollo import APOLLO
from gym_optim.config.apollo_mini import APOLLOMini
from gym_optim.config.badam import BAdam
from gym_optim.config.fira import Fira
from gym_optim.config.galore import GaLore
from gym_optim.config.lion import Lion
from gym_optim.config.lisa import LISA
from gym_optim.config.lomo import LOMO
from gym_optim.config.lora_plus import LoRAPlus
from gym_optim.config.lora_pro import LoRAPro
from gym_optim.config.muon import Muon
from gym_optim.config.paged_adamw_8bit import PagedAdamW8bit
from gym_optim.config.q_galore import QGaLore
from gym_optim.config.schedule_free_adamw import ScheduleFreeAdamW
from gym_optim.config.schedules import WSD, Constant, Cosine, InverseSqrt, Linear, Polynomial
from gym_optim.config.sgd import SGD
from gym_optim.config.soap import SOAP

__all__ = [
    "APOLLO",
    "LISA",
    "LOMO",
    "SGD",
    "SOAP",
    "WSD",
    "APOLLOMini",
    "AdaLomo",
    "Adafactor",
    "AdamMini",
    "AdamW",
    "AdamW8bit",
    "BAdam",
    "Constant",
    "Cosine",
    "Fira",
    "GaLore",
    "InverseSqrt",
    "Linear",
    "Lion",
    "LoRAPlus",
    "LoRAPro",
    "Muon",
    "PagedAdamW8bit",
    "Polynomial",
    "QGaLore",
    "ScheduleFreeAdamW",
]
