"""Lets adapters find their first values before the first step: what they ask for are the batches of that step.

They are those the loop will take, laid out and scored as the loop does it, so this works with packing and any algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gym_torch.batch import Batch
from gym_torch.distributed.collectives import gathered
from gym_torch.distributed.ddp import Replicated
from gym_torch.loop.step_batches import reseed
from gym_torch.model.adapted import AdaptedModel
from gym_torch.objective import Objective
from gym_torch.policy import Policy
from gym_torch.source import Source
from gym_torch.trained_part import FirstStepBatch


def initialize(adapted: AdaptedModel, policy: Policy[Any], first: Callable[[], Iterator[FirstStepBatch]]) -> None:
    """Have the adapter find its first values, and then what trains beside the model; the same in every process.

    `first` is what `first_step` does; nothing of it happens where nobody looks at the first step. Raises what they raise.
    """
    for part in (adapted, *policy.auxiliary_modules):
        with torch.random.fork_rng():
            part.initialize(first())
    policy.zero_grad()  # a part that looked at gradients of its own left some at the others


def first_step(
    policy: Policy[Any],
    objective: Objective[Any, Any],
    source: Source,
    spread: Replicated,
    seed: int,
    ready: Callable[[], None],
) -> Iterator[FirstStepBatch]:
    """Yield the batches of the first step one after another, from all processes.

    `ready` is called before: from then on the objective can compute its loss.
    """
    ready()
    step = next(source.steps(0, spread.rank, spread.world))
    own = [list(examples) for examples in step.batches[: len(step.batches) - step.spare]]
    batches = gathered(spread.accelerator, own if spread.first else [])
    device = next(policy.parameters()).device
    policy.train()
    for number, examples in enumerate(batches):
        reseed(seed, 0, number)
        batch = objective.collate(examples).to(device)
        yield FirstStepBatch(batch, partial(_loss, policy, objective, batch))


def _loss(policy: Policy[Any], objective: Objective[Any, Any], batch: Batch) -> Tensor:
    return objective.loss(policy, batch)[0]
