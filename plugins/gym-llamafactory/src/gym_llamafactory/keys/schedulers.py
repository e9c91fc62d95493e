"""How the learning rate falls."""

from __future__ import annotations

from typing import Any

from gym_llamafactory.keys.convert import entry
from gym_llamafactory.table import Choice, Key, Keys


def _share(value: Any) -> float:
    """Take the default: the rate is stable for a third of the steps after warm-up, and falls for the rest."""
    if isinstance(value, float):
        return value
    raise ValueError("write the section out: `scheduler: {name: wsd, decay_ratio: 0.2}`")


class SchedulerKeys(Keys):
    """Keys of the learning rate."""

    choices = (
        Choice(
            "lr_scheduler_type",
            "scheduler",
            {
                "constant": "constant",
                "constant_with_warmup": "constant",
                "cosine": "cosine",
                "cosine_with_min_lr": "cosine",
                "cosine_with_restarts": "cosine",
                "inverse_sqrt": "inverse_sqrt",
                "linear": "linear",
                "polynomial": "polynomial",
                "warmup_stable_decay": "wsd",
            },
            default="linear",
        ),
    )
    keys = (
        Key(
            "lr_scheduler_kwargs",
            "scheduler.power",
            "polynomial",
            entry("power", "scheduler: {name: polynomial, power: 2, min_lr_ratio: 0.1}"),
        ),
        Key(
            "lr_scheduler_kwargs",
            "scheduler.min_lr_ratio",
            "cosine",
            entry("min_lr_rate", "scheduler: {name: cosine, min_lr_ratio: 0.1, num_cycles: 2}"),
        ),
        Key(
            "lr_scheduler_kwargs",
            "scheduler.timescale",
            "inverse_sqrt",
            entry("timescale", "scheduler: {name: inverse_sqrt, timescale: 100}"),
        ),
        Key("lr_scheduler_kwargs", "scheduler.decay_ratio", "wsd", _share, default=2 / 3),
    )
