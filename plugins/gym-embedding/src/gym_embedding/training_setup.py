"""What embedding contributes to a run: steps that are judged as a whole, and an evaluation over all that is held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch

from gym_data.kinds import Data
from gym_embedding import Embedding
from gym_embedding.evaluation import RetrievalEvaluation
from gym_embedding.objective import EmbeddingObjective, EmbeddingPolicy
from gym_embedding.pooling import Pooling
from gym_embedding.samples import TextsSample
from gym_embedding.whole_step import Embedded, JudgedSteps
from gym_torch.console import warn
from gym_torch.contribution import Contribution, Parts, dataset
from gym_torch.distributed.collectives import gathered
from gym_torch.kinds import part
from gym_torch.loop.job import Job
from gym_torch.loop.step_batches import place, reseed
from gym_torch.policy import evaluating
from gym_torch.source import Step, once

ALONE = (
    "a step has one row, whose own negatives are all there is to tell its positive from: a larger `train.batch_size` or "
    "`train.accumulate` adds the texts of other rows"
)


def embeddings(parts: Parts[Embedding, EmbeddingObjective, EmbeddingPolicy, TextsSample]) -> Contribution:
    """Return texts whose loss is that of their whole step, and what measures those held out."""
    data = part(parts.run.recipe, Data)
    cast(Pooling, parts.policy.auxiliary["pooling"]).longest = data.longest() if data else None
    device, seed = parts.accelerator.device, parts.train.seed

    @torch.no_grad()
    def pass_of(examples: Sequence[TextsSample], step: int, number: int) -> Embedded:
        """Embed a batch; what is drawn at random is what its number in the step draws in training."""
        reseed(seed, step, number)
        batch = parts.objective.collate(examples)
        reseed(seed, step, number)
        states = parts.policy(batch.to(device)).cpu().numpy()
        texts = np.array([len(each.lengths) for each in examples])
        return Embedded(states, texts, batch.keys.numpy(), batch.columns["scores"].numpy())

    def together(found: Sequence[Embedded]) -> list[Embedded]:
        """Return what each process has."""
        own = [np.concatenate(column) for column in zip(*found, strict=True)]
        return gathered(parts.accelerator, [Embedded(*own)])

    def of_step(number: int, step: Step[TextsSample]) -> Sequence[Embedded]:
        every = [pass_of(examples, number, parts.rank + parts.world * at) for at, examples in enumerate(step.batches)]
        return together(every[: len(every) - step.spare] or [_none_of(every[0])])

    def held_out(job: Job) -> Sequence[Embedded] | None:
        assert parts.data.validation is not None
        step = once(parts.data.validation, parts.train, parts.layout, parts.rank, parts.world)
        every = []
        with evaluating(parts.policy):
            for examples in step.batches:
                job.ranks.at(place(job.progress.step, examples, "evaluation after step"))
                every.append(pass_of(examples, 0, 0))
                if job.stopped:
                    return None
        return together(every[: len(every) - step.spare] or [_none_of(every[0])])

    order = dataset(parts)
    if parts.config.loss == "infonce" and np.diff(order.bounds).max() == 1:
        warn(ALONE)
    source = JudgedSteps(order, parts.config, of_step, device)
    evaluation = RetrievalEvaluation(parts.config, held_out) if parts.data.validation else None
    return Contribution(parts.objective, source, evaluation)


def _none_of(found: Embedded) -> Embedded:
    """Return the part of a process that has no rows of its own."""
    return Embedded(found.states[:0], found.texts[:0], found.keys[:0], found.scores[:0])
