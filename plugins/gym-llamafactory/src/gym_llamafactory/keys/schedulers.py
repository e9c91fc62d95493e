"""How the learning rate falls."""

from __future__ import annotations

from gym_dialect import Choice, Key, schedules
from gym_llamafactory.table import Keys


class SchedulerKeys(Keys):
    """Keys of the learning rate."""

    choices = (Choice("lr_scheduler_type", "scheduler", schedules.NAMES, default="linear"),)
    keys = (
        *schedules.arguments("lr_scheduler_type"),
        # The rate is stable for a third of the steps after warm-up, and falls for the rest.
        Key("", "scheduler.decay_ratio", "wsd", default=2 / 3),
    )
