"""What a recipe leaves to the machine: `batch_tokens: auto`, the largest batch that fits, and `gradient_checkpointing: auto`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gym_core import GymError, Recipe, RecipeError, Run, Train
from gym_torch.batch import Batch
from gym_torch.console import say
from gym_torch.model.gradient_checkpointing import Policy
from gym_torch.plan.machine import room
from gym_torch.plan.memory import objective_of, predict
from gym_torch.plan.skeleton import Skeleton, skeleton
from gym_torch.plan.workload import full_batch, longest, of_examples
from gym_torch.source import Examples

SMALLEST = 512
#: Most tokens of a batch. A CPU is busy with far fewer, and a batch that leaves its caches far behind only costs memory;
#: a GPU has long reached its full speed.
MOST = {"cpu": 8192, "cuda": 65536}
#: What `gradient_checkpointing: auto` tries, the fastest first.
POLICIES: tuple[Policy, ...] = (False, "selective", True)


def settle(run: Run, path: Path, precision: str, device: torch.device, examples: Examples) -> Train:
    """Return the training options of a run with what was found in place of `auto`.

    It is recorded in `run.json` when it is first found, so a resumed run, and every process, uses the same. Raises
    RecipeError where two things are `auto`, and GymError where nothing fits.
    """
    recipe, train = run.recipe, run.recipe.train
    check(train)

    def found(key: str, find: Callable[[], Any]) -> Train:
        """Return the options with what the run that is resumed found, or what is found now."""

        def known() -> Any:
            before = run.record.read()
            return before[key] if key in before else find()

        value = run.ranks.agree(known)
        run.record.update(**{key: value})
        say(f"{key}: {json.dumps(value)}")
        return train.model_copy(update={key: value})

    def batch(built: Skeleton) -> Batch:
        return of_examples(recipe, objective_of(recipe, built.layout), examples, train).batch

    if train.batch_tokens == "auto":
        return found("batch_tokens", lambda: largest(recipe, skeleton(recipe, path, precision, device), room(device)))
    if train.gradient_checkpointing == "auto":
        return found("gradient_checkpointing", lambda: lightest(recipe, path, precision, device, batch))
    return train


def check(train: Train) -> None:
    """Raise RecipeError where the batch and what layers keep of it are both left to the machine."""
    if (train.batch_tokens, train.gradient_checkpointing) == ("auto", "auto"):
        raise RecipeError(
            "either the batch or what is computed again can be `auto`",
            key="train.gradient_checkpointing",
            fix="set `gradient_checkpointing: selective`, or a number for `batch_tokens`",
        )


def lightest(
    recipe: Recipe, path: Path, precision: str, device: torch.device, batch: Callable[[Skeleton], Batch]
) -> Policy:
    """Return the fastest of `POLICIES` under which the batch that is given for a skeleton fits the machine.

    Raises GymError when none does.
    """
    for policy in POLICIES:
        tried = replace(recipe, train=recipe.train.model_copy(update={"gradient_checkpointing": policy}))
        built = skeleton(tried, path, precision, device)
        peak = predict(tried, built, batch(built)).memory.peak
        if peak <= room(device):
            return policy
    raise GymError(
        f"a step would need {peak / 2**30:.1f} GiB of {room(device) / 2**30:.1f} GiB, whatever is computed again",
        key="train.gradient_checkpointing",
        fix="set `batch_tokens: auto`, `adapter: lora`, or take a smaller model",
    )


def largest(recipe: Recipe, built: Skeleton, memory: int) -> int:
    """Return the largest power of two, within bounds, whose predicted peak is at most `memory` bytes.

    Raises GymError when not even the smallest fits.
    """
    objective, tokens = objective_of(recipe, built.layout), MOST.get(built.device.type, MOST["cuda"])
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
