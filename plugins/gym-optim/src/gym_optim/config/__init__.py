"""The optimizers and schedules as a recipe sees them: options, defaults, documentation. Nothing heavy.

They are imported on first use, so that naming one optimizer does not import all.
"""

from __future__ import annotations

from gym_core.lazy import lazily

_HOMES = {
    "gym_optim.config.adafactor": "Adafactor",
    "gym_optim.config.adalomo": "AdaLomo",
    "gym_optim.config.adam_mini": "AdamMini",
    "gym_optim.config.adamw": "AdamW",
    "gym_optim.config.adamw_8bit": "AdamW8bit",
    "gym_optim.config.apollo": "APOLLO",
    "gym_optim.config.apollo_mini": "APOLLOMini",
    "gym_optim.config.badam": "BAdam",
    "gym_optim.config.fira": "Fira",
    "gym_optim.config.galore": "GaLore",
    "gym_optim.config.lion": "Lion",
    "gym_optim.config.lisa": "LISA",
    "gym_optim.config.lomo": "LOMO",
    "gym_optim.config.lora_plus": "LoRAPlus",
    "gym_optim.config.lora_pro": "LoRAPro",
    "gym_optim.config.muon": "Muon",
    "gym_optim.config.paged_adamw_8bit": "PagedAdamW8bit",
    "gym_optim.config.q_galore": "QGaLore",
    "gym_optim.config.schedule_free_adamw": "ScheduleFreeAdamW",
    "gym_optim.config.schedules": "WSD Constant Cosine InverseSqrt Linear Polynomial",
    "gym_optim.config.sgd": "SGD",
    "gym_optim.config.soap": "SOAP",
}
__all__, __getattr__, __dir__ = lazily(__name__, _HOMES)
