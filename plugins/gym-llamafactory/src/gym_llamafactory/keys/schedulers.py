"""How the learning rate falls."""

from __future__ import annotations

from typing import Any

from gym_dialect import Choice, Key
from gym_dialect.convert import only, refused
from gym_llamafactory.table import Keys

RATE = 5e-5  #: what a file means that leaves `learning_rate` out
_DECAYS = {"cosine": "cosine", "linear": "linear", "1-sqrt": "sqrt"}
_STEPS = "is a number of steps: write the section out, with a share of them: `scheduler: {name: wsd, decay_ratio: 0.2}`"


def floor(rate: Any, learning_rate: Any = RATE) -> float:
    """Return a learning rate as a share of the highest one. Raises ValueError for one that is not below it."""
    if not 0 <= float(rate) < float(learning_rate):
        raise ValueError(f"is a learning rate below `learning_rate` ({learning_rate}), not {rate}")
    return float(rate) / float(learning_rate)


def cycles(value: Any, lr_scheduler_type: Any = None) -> int | None:
    """Return the waves of `cosine_with_restarts`; of the others the half wave is taken that they are without it."""
    if str(lr_scheduler_type).lower() == "cosine_with_restarts":
        return int(value)
    return only(0.5)(value)


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
        Key("lr_scheduler_kwargs.power", "scheduler.power", "polynomial", float),
        Key(
            "lr_scheduler_kwargs.lr_end", "scheduler.min_lr_ratio", "polynomial", floor, 1e-7, together="learning_rate"
        ),
        Key("lr_scheduler_kwargs.min_lr_rate", "scheduler.min_lr_ratio", "cosine", float),
        Key("lr_scheduler_kwargs.min_lr", "scheduler.min_lr_ratio", "cosine", floor, together="learning_rate"),
        Key("lr_scheduler_kwargs.num_cycles", "scheduler.num_cycles", "cosine", cycles, together="lr_scheduler_type"),
        Key("lr_scheduler_kwargs.timescale", "scheduler.timescale", "inverse_sqrt", int),
        # The rate is stable for a third of the steps after warm-up, and falls for the rest.
        Key("", "scheduler.decay_ratio", "wsd", default=2 / 3),
        Key("lr_scheduler_kwargs.num_decay_steps", "scheduler.decay_ratio", "wsd", refused(_STEPS)),
        Key("lr_scheduler_kwargs.num_stable_steps", "scheduler.decay_ratio", "wsd", refused(_STEPS)),
        Key("lr_scheduler_kwargs.decay_type", "scheduler.decay_type", "wsd", _DECAYS, "cosine"),
        Key("lr_scheduler_kwargs.min_lr_ratio", "scheduler.min_lr_ratio", "wsd", float),
        Key("lr_scheduler_kwargs.warmup_type", "scheduler.decay_type", "wsd", only("linear")),
        Key("lr_scheduler_kwargs.num_cycles", "scheduler.decay_type", "wsd", only(0.5)),
    )
