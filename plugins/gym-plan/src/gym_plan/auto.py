"""Settles `batch_tokens: auto`, the largest batch that fits, and `gradient_checkpointing: auto`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gym_core import GymError, Recipe, RecipeError, Train
from gym_plan.machine import room
from gym_plan.memory import objective_of, predict
from gym_plan.skeleton import Skeleton, skeleton
from gym_plan.workload import full_batch, longest, of_examples
from gym_torch.batch import Batch
from gym_torch.distributed.strategies import processes_here
from gym_torch.memory.gradient_checkpointing import Policy
from gym_torch.planners import AUTO, PlannedRun

SMALLEST = 512
#: Most tokens of a batch. A CPU is busy with far fewer, and a batch that leaves its caches far behind only costs memory;
#: a GPU has long reached its full speed.
MOST = {"cpu": 8192, "cuda": 65536}
#: What `gradient_checkpointing: auto` tries, the fastest first.
POLICIES: tuple[Policy, ...] = (False, "selective", True, "tiled")


class Fitting:
    """Settles what a recipe leaves open so that a step fits the memory of the machine; what a component `memory` builds."""

    def __init__(self, config: Any = None, memory: Callable[[torch.device, int], int] = room) -> None:
        """Take the component, which has no options, and what says how many bytes tensors may take in each process."""
        self.memory = memory

    def settle(self, run: PlannedRun) -> dict[str, Any]:
        """Return a value for what is `auto`. Raises RecipeError where two keys are, and GymError where nothing fits."""
        recipe, train = run.recipe, run.recipe.train
        check(train)
        memory = self.memory(run.device, processes_here(recipe))
        if train.batch_tokens == AUTO:
            built = skeleton(recipe, run.precision, run.device)
            return {"batch_tokens": largest(recipe, built, memory)}
        if train.gradient_checkpointing == AUTO:
            batch = partial(_batch, run)
            return {"gradient_checkpointing": lightest(recipe, run.precision, run.device, batch, memory)}
        return {}

    def predicted_bytes(self, run: PlannedRun) -> int:
        """Return the peak of a step over the largest batch."""
        built = skeleton(run.recipe, run.precision, run.device)
        return predict(run.recipe, built, _batch(run, built)).memory.peak


def _batch(run: PlannedRun, built: Skeleton) -> Batch:
    """Return the largest batch of a run."""
    return of_examples(run.recipe, objective_of(run.recipe, built.layout), run.examples, run.recipe.train).batch


def check(train: Train) -> None:
    """Raise RecipeError where the batch and what layers keep of it are both left to the machine."""
    if (train.batch_tokens, train.gradient_checkpointing) == (AUTO, AUTO):
        raise RecipeError(
            "either the batch or what is computed again can be `auto`",
            key="train.gradient_checkpointing",
            fix="set `gradient_checkpointing: selective`, or a number for `batch_tokens`",
        )


def lightest(
    recipe: Recipe,
    precision: str,
    device: torch.device,
    batch: Callable[[Skeleton], Batch],
    memory: int,
) -> Policy:
    """Return the fastest of `POLICIES` under which the batch that is given for a skeleton fits into `memory` bytes.

    Raises GymError when none does.
    """
    for policy in POLICIES:
        tried = replace(recipe, train=recipe.train.model_copy(update={"gradient_checkpointing": policy}))
        built = skeleton(tried, precision, device)
        peak = predict(tried, built, batch(built)).memory.peak
        if peak <= memory:
            return policy
    raise GymError(
        f"a step would need {peak / 2**30:.1f} GiB of {memory / 2**30:.1f} GiB, whatever is computed again",
        key="train.gradient_checkpointing",
        fix="set `batch_tokens: auto`, `adapter: lora`, or take a smaller model",
    )


def largest(recipe: Recipe, built: Skeleton, memory: int, most: Mapping[str, int] = MOST) -> int:
    """Return the largest power of two, within bounds, whose predicted peak is at most `memory` bytes.

    Raises GymError when not even the smallest fits.
    """
    objective, tokens = objective_of(recipe, built.layout), most.get(built.device.type, MOST["cuda"])
    while True:
        train = recipe.train.model_copy(update={"batch_tokens": tokens, "accumulate": 1})
        batch = full_batch(recipe, objective, train, min(tokens, longest(recipe))).batch
        peak = predict(recipe, built, batch).memory.peak
        if peak <= memory:
            return tokens
        if tokens == SMALLEST:
            break
        tokens //= 2
    raise GymError(
        f"a batch of {tokens} tokens would need {peak / 2**30:.1f} GiB of {memory / 2**30:.1f} GiB",
        key="train.batch_tokens",
        fix="set `gradient_checkpointing: true`, `adapter: lora`, or take a smaller model",
    )
