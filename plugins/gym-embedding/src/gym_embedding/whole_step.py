"""Judges the embeddings of a whole step before it is trained on (gradient caching, arXiv:2101.06983).

A loss in which every text competes with every other needs all embeddings at once, and a model has room for a few texts at a time.
So the texts of a step are embedded without a graph, the gradient of the loss by each embedding is found, and the passes of
training carry that back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gym_embedding import Embedding
from gym_embedding.losses import Pool
from gym_embedding.objective import judge
from gym_embedding.samples import JudgedTexts, TextsSample
from gym_torch.source import Dataset, Source, Step


class Embedded(NamedTuple):
    """The embeddings of some rows."""

    states: npt.NDArray[np.float32]  #: [texts, dim], as they are pooled
    texts: npt.NDArray[np.int64]  #: [rows], texts of each
    keys: npt.NDArray[np.int64]  #: [texts], see `Pool`
    scores: npt.NDArray[np.float32]  #: [rows]


Embed = Callable[[int, Step[TextsSample]], Sequence[Embedded]]
"""Returns what every process has of a step of this number, its own part in the order of its batches."""


def joined(parts: Sequence[Embedded], device: torch.device) -> tuple[Tensor, Pool]:
    """Return the states of all rows, and which texts belong together."""
    states, texts, keys, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
    return torch.from_numpy(states).to(device), Pool.of(texts, keys, scores).to(device)


class JudgedSteps(Source):
    """The steps of a dataset, whose rows know what the loss of the whole step asks of their embeddings."""

    def __init__(self, order: Dataset[TextsSample], config: Embedding, embed: Embed, device: torch.device) -> None:
        """Take the steps of the run, and what asks the policy for embeddings."""
        self.order, self.config, self.embed, self.device = order, config, embed, device
        self.total, self.tokens = order.total, order.tokens

    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step[TextsSample]]:
        """Yield the steps from number `start` on; as each begins, its texts are embedded, unless they are one batch."""
        for number, step in enumerate(self.order.steps(start, rank, world), start):
            whole = world == 1 and len(step.batches) == 1
            yield step if whole else self.judged(step, self.embed(number, step), rank)

    def judged(self, step: Step[TextsSample], parts: Sequence[Embedded], rank: int) -> Step[TextsSample]:
        """Return this process's part of a step, whose rows know what all embeddings of the step ask of theirs."""
        states, pool = joined(parts, self.device)
        with torch.enable_grad():
            losses, found = judge(states.requires_grad_(), pool, self.config)
            (gradient,) = torch.autograd.grad(losses.sum(), states)
        row = sum(len(part.texts) for part in parts[:rank])
        text = sum(len(part.states) for part in parts[:rank])
        gradients, told = gradient.cpu().numpy(), torch.stack([losses.detach(), found]).T.tolist()
        batches: list[list[TextsSample]] = []
        for examples in step.batches[: len(step.batches) - step.spare]:
            batches.append([])
            for each in examples:
                own, (loss, first) = gradients[text : text + len(each.lengths)], told[row]
                batches[-1].append(JudgedTexts(**vars(each), gradient=own, loss=loss, found=first))
                row, text = row + 1, text + len(each.lengths)
        spare = [list(examples) for examples in step.batches[len(batches) :]]  # these count for nothing
        return replace(step, batches=[*batches, *spare])

    def largest(self, count: int) -> Sequence[int]:
        """Return the steps that hold the most tokens."""
        return self.order.largest(count)

    def extend(self, state: Mapping[str, Any], step: int) -> None:
        """Plan on from where a shorter plan ended."""
        self.order.extend(state, step)
        self.total, self.tokens = self.order.total, self.order.tokens

    def state_dict(self) -> dict[str, Any]:
        """Return what names the samples and their order."""
        return self.order.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take it up. Raises DataError when the samples are others."""
        self.order.load_state_dict(state, tensors)
