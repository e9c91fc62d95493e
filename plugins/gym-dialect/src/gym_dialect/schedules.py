"""Schedules of transformers: their names, and `lr_scheduler_kwargs`, which several tools pass on to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gym_dialect.convert import only, refused
from gym_dialect.table import Key

NAMES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "cosine_with_restarts": "cosine",
    "inverse_sqrt": "inverse_sqrt",
    "linear": "linear",
    "polynomial": "polynomial",
    "warmup_stable_decay": "wsd",
}
"""Names of schedules, by what they are here."""
RATE = 5e-5  #: what a file means that leaves `learning_rate` out
_DECAYS = {"cosine": "cosine", "linear": "linear", "1-sqrt": "sqrt"}
_STEPS = "is a number of steps: write the section out, with a share of them: `scheduler: {name: wsd, decay_ratio: 0.2}`"


def floor(rate: Any, learning_rate: Any = RATE) -> float:
    """Return a learning rate as a share of the highest one. Raises ValueError for one that is not below it."""
    if not 0 <= float(rate) < float(learning_rate):
        raise ValueError(f"is a learning rate below `learning_rate` ({learning_rate}), not {rate}")
    return float(rate) / float(learning_rate)


def cycles(key: str) -> Callable[..., int | None]:
    """Return a conversion of the waves of `cosine_with_restarts`, where `key` names the schedule.

    Of the others the half wave is taken that they are without it.
    """

    def waves(value: Any, **more: Any) -> int | None:
        restarts = str(more.get(key)).lower() == "cosine_with_restarts"
        return int(value) if restarts else only(0.5)(value)

    return waves


def arguments(key: str) -> tuple[Key, ...]:
    """Return the rows of `lr_scheduler_kwargs`; `key` names the schedule."""
    held, rate = "lr_scheduler_kwargs", "learning_rate"
    return (
        Key(f"{held}.power", "scheduler.power", "polynomial", float),
        Key(f"{held}.lr_end", "scheduler.min_lr_ratio", "polynomial", floor, 1e-7, together=rate),
        Key(f"{held}.min_lr_rate", "scheduler.min_lr_ratio", "cosine", float),
        Key(f"{held}.min_lr", "scheduler.min_lr_ratio", "cosine", floor, together=rate),
        Key(f"{held}.num_cycles", "scheduler.num_cycles", "cosine", cycles(key), together=key),
        Key(f"{held}.timescale", "scheduler.timescale", "inverse_sqrt", int),
        Key(f"{held}.num_decay_steps", "scheduler.decay_ratio", "wsd", refused(_STEPS)),
        Key(f"{held}.num_stable_steps", "scheduler.decay_ratio", "wsd", refused(_STEPS)),
        Key(f"{held}.decay_type", "scheduler.decay_type", "wsd", _DECAYS, "cosine"),
        Key(f"{held}.min_lr_ratio", "scheduler.min_lr_ratio", "wsd", float),
        Key(f"{held}.warmup_type", "scheduler.decay_type", "wsd", only("linear")),
        Key(f"{held}.num_cycles", "scheduler.decay_type", "wsd", only(0.5)),
    )
