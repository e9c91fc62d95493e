"""`batch_tokens: auto`: the largest batch that fits."""

from __future__ import annotations

from pathlib import Path

import torch

from gym_core import GymError, Recipe, Run, Train
from gym_torch.console import say
from gym_torch.plan.machine import MARGIN, memory_at_hand
from gym_torch.plan.memory import objective_of, predict
from gym_torch.plan.skeleton import Skeleton, skeleton
from gym_torch.plan.workload import full_batch, longest

SMALLEST = 512
#: Most tokens of a batch. A CPU is busy with far fewer, and a batch that leaves its caches far behind only costs memory;
#: a GPU has long reached its full speed.
MOST = {"cpu": 8192, "cuda": 65536}


def settle(run: Run, path: Path, precision: str, device: torch.device) -> Train:
    """Return the training options of a run with a number in place of `auto`.

    The number is recorded in `run.json` when it is first found, so a resumed run, and every process, uses the same.
    """
    train = run.recipe.train
    if train.batch_tokens != "auto":
        return train

    def find() -> int:
        """Return the number of the run that is resumed, or look for one."""
        before: int | None = run.record.read().get("batch_tokens")
        return before or largest(run.recipe, skeleton(run.recipe, path, precision, device), memory_at_hand(device))

    tokens = run.ranks.agree(find)
    run.record.update(batch_tokens=tokens)
    say(f"batch_tokens: {tokens:,}")
    return train.model_copy(update={"batch_tokens": tokens})


def largest(recipe: Recipe, built: Skeleton, memory: int) -> int:
    """Return the largest power of two, within bounds, at which the predicted peak leaves a margin of `memory` bytes.

    Raises GymError when not even the smallest fits.
    """
    objective, tokens = objective_of(recipe, built.layout), MOST.get(built.device.type, MOST["cuda"])
    while True:
        train = recipe.train.model_copy(update={"batch_tokens": tokens, "accumulate": 1})
        batch = full_batch(recipe, objective, train, min(tokens, longest(recipe))).batch
        peak = predict(recipe, built, batch).memory.peak
        if peak <= MARGIN * memory:
            return tokens
        if tokens == SMALLEST:
            break
        tokens //= 2
    raise GymError(
        f"a batch of {tokens} tokens would need {peak / 2**30:.1f} GiB of {memory / 2**30:.1f} GiB",
        key="train.batch_tokens",
        fix="set `gradient_checkpointing: true`, `adapter: lora`, or take a smaller model",
    )
