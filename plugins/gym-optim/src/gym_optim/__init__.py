"""gym-optim: optimizers and learning-rate schedules. The names below are `torch.optim.Optimizer`s for any loop.

They are imported on first use, for listing plugins must not import torch. What a recipe sees of them is `gym_optim.config`.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "gym_optim.adafactor": ("Adafactor",),
    "gym_optim.adam_mini": ("AdamMini",),
    "gym_optim.apollo": (
        "APOLLO",
        "APOLLOMini",
    ),
    "gym_optim.blockwise": (
        "LISA",
        "BAdam",
    ),
    "gym_optim.fira": ("Fira",),
    "gym_optim.galore": ("GaLore",),
    "gym_optim.groups": ("parameter_groups",),
    "gym_optim.in_backward": (
        "InBackward",
        "adalomo",
        "lomo",
    ),
    "gym_optim.lion": ("Lion",),
    "gym_optim.lora": (
        "LoRAPro",
        "lora_plus",
        "lora_plus_groups",
    ),
    "gym_optim.muon": ("Muon",),
    "gym_optim.q_galore": ("QGaLore",),
    "gym_optim.quantized": ("AdamW8bit",),
    "gym_optim.schedule_free": (
        "Averaging",
        "ScheduleFreeAdamW",
    ),
    "gym_optim.soap": ("SOAP",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: PLE0604 - the table above is the one list of public names
    *_HOME_OF,
]


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'gym_optim' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*globals(), *_HOME_OF])
