"""gym-optim: optimizers and learning-rate schedules. The names below are `torch.optim.Optimizer`s for any loop.

They are imported on first use, for listing plugins must not import torch. What a recipe sees of them is `gym_optim.config`.
"""

from __future__ import annotations

from gym_core.lazy import lazily

__version__ = "0.1.0"

_HOMES = {
    "gym_optim.adafactor": "Adafactor",
    "gym_optim.adam_mini": "AdamMini",
    "gym_optim.adamw": "AdamW",
    "gym_optim.apollo": "APOLLO APOLLOMini",
    "gym_optim.blockwise": "LISA BAdam",
    "gym_optim.fira": "Fira",
    "gym_optim.galore": "GaLore",
    "gym_optim.groups": "parameter_groups",
    "gym_optim.in_backward": "InBackward adalomo lomo",
    "gym_optim.lion": "Lion",
    "gym_optim.lora": "LoRAPro lora_plus lora_plus_groups",
    "gym_optim.muon": "Muon",
    "gym_optim.paged": "paged_adamw_8bit",
    "gym_optim.q_galore": "QGaLore",
    "gym_optim.quantized": "AdamW8bit",
    "gym_optim.schedule_free": "Averaging ScheduleFreeAdamW",
    "gym_optim.sgd": "SGD",
    "gym_optim.soap": "SOAP",
}
__all__, __getattr__, __dir__ = lazily(__name__, _HOMES)
