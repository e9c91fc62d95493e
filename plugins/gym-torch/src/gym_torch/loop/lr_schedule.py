"""The factor of the learning rate in each step: that of the recipe's scheduler, checked."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf

from gym_core import PluginError, Recipe
from gym_optim.config import Linear
from gym_optim.kinds import Scheduler
from gym_optim.promises import named, promised
from gym_torch.contract_checks import number
from gym_torch.kinds import part


def schedule(recipe: Recipe, total: int) -> Callable[[int], float]:
    """Return the factor of the learning rate after so many of `total` steps."""
    warmup = recipe.train.warmup
    steps = ceil(total * warmup) if warmup < 1 else int(warmup)  # as transformers rounds, to the bit
    scheduler, key = part(recipe, Scheduler) or Linear(), "scheduler"
    factor: Callable[[int], object] = scheduler.build(total=total, warmup=steps)
    promised(factor, Callable, scheduler, key)  # type: ignore[arg-type]

    def checked(step: int) -> float:
        by = f"the schedule of {named(scheduler)}"
        found = number(factor(step), by, key)
        if not 0 <= found < inf:  # a step with such a rate would seem to be the fault of its samples
            fix = "let it return a factor of the learning rate, from 0"
            raise PluginError(f"{by} returned {found} after {step} of {total} steps", key=key, fix=fix)
        return found

    return checked
