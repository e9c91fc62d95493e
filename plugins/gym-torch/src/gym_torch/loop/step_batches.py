"""From the samples of a step to batches: laid out one after another, each with random numbers of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gym_core import DataError
from gym_torch.batch import Batch, Example
from gym_torch.distributed.collectives import over_processes
from gym_torch.loop.job import Job
from gym_torch.source import Step


@dataclass(frozen=True)
class StepBatches:
    """The batches of one process, and what the batches of all processes hold together."""

    batches: Sequence[Any]  #: `Batch`es of the objective
    seeds: Sequence[int]  #: number of each in the whole step
    counted: int  #: how many of them count, from the first on
    weight: float  #: of the step: what every loss is divided by; processes that share batches each count them
    tokens: float  #: of its samples, also those that are computed once for several
    samples: float

    @classmethod
    def of(cls, job: Job, step: Step) -> StepBatches:
        """Lay the step out. Raises DataError where nothing in it is to be trained on."""
        train, progress, accelerator = job.train, job.progress, job.accelerator
        # Each batch is seeded by its number in the whole step, so dropout does not depend on which process has it.
        world = job.spread.world
        seeds = range(job.spread.rank, world * len(step.batches), world)
        batches: list[Batch] = []
        for seed, examples in zip(seeds, step.batches, strict=True):
            job.ranks.at(place(progress.step, examples))
            reseed(train.seed, progress.step, seed)
            batches.append(job.objective.collate(examples))
        counted = len(batches) - step.spare
        sizes = [
            (job.weight(batch), sum(len(example.tokens) for example in examples), len(examples))
            for batch, examples in zip(batches[:counted], step.batches, strict=False)
        ]
        weight, tokens, samples = over_processes(
            accelerator, [sum(column) for column in zip((0.0, 0, 0), *sizes, strict=True)]
        )
        if not weight:
            names = [name for batch in batches for name in batch.ids]
            why = f"step {progress.step + 1} has nothing to learn from: {', '.join(names[:5])}"
            raise DataError(why, key="data")
        return cls(batches, seeds, counted, weight, tokens / job.spread.sharing, samples / job.spread.sharing)


def reseed(seed: int, step: int, number: int) -> None:
    """Start the random numbers of a batch of a step anew: dropout does not depend on what ran before, nor on where."""
    digest = hashlib.blake2b(f"{seed}/{step}/{number}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "big") >> 1)


def place(step: int, examples: Sequence[Example], what: str = "step") -> str:
    """Name a batch."""
    names = [example.id for example in examples[:4]]
    more = f" and {len(examples) - 4} more" if len(examples) > 4 else ""
    return f"{what} {step + (what == 'step')}, samples {', '.join(names)}{more}"
