"""The optimizers and schedules as a recipe sees them: options, defaults, documentation. Nothing heavy."""

from gym_optim.config.adam import SOAP, AdamMini, AdamW, AdamW8bit, PagedAdamW8bit, ScheduleFreeAdamW
from gym_optim.config.low_rank import APOLLO, APOLLOMini, Fira, GaLore, QGaLore
from gym_optim.config.parts import LISA, BAdam, LoRAPlus, LoRAPro
from gym_optim.config.schedules import WSD, Constant, Cosine, InverseSqrt, Linear, Polynomial
from gym_optim.config.simple import LOMO, SGD, Adafactor, AdaLomo, Lion, Muon

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
