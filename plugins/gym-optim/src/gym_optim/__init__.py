"""gym-optim: optimizers and learning-rate schedules. The names below are `torch.optim.Optimizer`s for any loop.

They are imported on first use, for listing plugins must not import torch. What a recipe sees of them is `gym_optim.config`.
"""

from __future__ import annotations

from gym_core.lazy import lazily

__version__ = "0.1.0"

_HOMES = {
    "gym_optim.optimizers.adafactor": "Adafactor",
    "gym_optim.optimizers.adalomo": "adalomo",
    "gym_optim.optimizers.adam_mini": "AdamMini",
    "gym_optim.optimizers.adamw": "AdamW",
    "gym_optim.optimizers.adamw_8bit": "AdamW8bit",
    "gym_optim.optimizers.apollo": "APOLLO",
    "gym_optim.optimizers.apollo_mini": "APOLLOMini",
    "gym_optim.optimizers.badam": "BAdam",
    "gym_optim.optimizers.fira": "Fira",
    "gym_optim.optimizers.galore": "GaLore",
    "gym_optim.in_backward": "InBackward",
    "gym_optim.optimizers.lion": "Lion",
    "gym_optim.optimizers.lisa": "LISA",
    "gym_optim.optimizers.lomo": "lomo",
    "gym_optim.optimizers.lora_plus": "lora_plus lora_plus_groups",
    "gym_optim.optimizers.lora_pro": "LoRAPro",
    "gym_optim.optimizers.muon": "Muon",
    "gym_optim.optimizers.paged_adamw_8bit": "paged_adamw_8bit",
    "gym_optim.param_groups": "parameter_groups",
    "gym_optim.optimizers.q_galore": "QGaLore",
    "gym_optim.optimizers.schedule_free_adamw": "Averaging ScheduleFreeAdamW",
    "gym_optim.optimizers.sgd": "SGD",
    "gym_optim.optimizers.soap": "SOAP",
}
__all__, __getattr__, __dir__ = lazily(__name__, _HOMES)
