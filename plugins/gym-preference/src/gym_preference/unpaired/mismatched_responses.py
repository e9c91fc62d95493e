"""Unpaired responses: as answers over prompts, to prompts that they do not belong to, and as steps know them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from gym_core import DataError
from gym_data.examples import UnpairedExample
from gym_torch.batch import Example, Piece
from gym_torch.prompt_responses import PromptResponses
from gym_torch.source import Examples, Step, order

EPOCH = -1  #: whose order says which answer is put to which prompt; no run comes past it


@dataclass(frozen=True)
class UnpairedSample(UnpairedExample):
    """A judged answer in its step."""

    baseline: float = 0.0  #: what its log-ratio is measured from, in nats
    share: float = 0.0
    """What its reward counts in the margin of the step, times the answers in the step; 0 where all of them are judged alike."""
    ftx_scale: float = 1.0
    """What its negative log-likelihood counts: the squared number of answers in the step to each good one."""


def prompt_responses(example: Example) -> PromptResponses:
    """Return the answer behind its own prompt; nobody shares that."""
    return PromptResponses(example.tokens[:0], (Piece(example.id, example.tokens, example.trained),))


def _start(example: Example) -> int:
    """Return the tokens before the first one that is learnt."""
    return int(np.argmax(example.trained))


class MismatchedResponses:
    """Prompts, each with the answer to another one, for a mismatched KL: drawn once for a run, each answer once.

    None is longer than the longest sample, for the model may have no more positions: the ends of answers are cut off.
    """

    def __init__(self, examples: Examples, seed: int) -> None:
        """Draw them. Raises DataError for a single sample, whose prompt would meet its own answer."""
        if len(examples) < 2:
            raise DataError(
                "answers are measured by answers to other prompts, and there is one sample alone",
                key="data",
                fix="add samples",
            )
        self.examples = examples
        drawn = order(seed, EPOCH, len(examples))
        self.partners = np.empty_like(drawn)
        self.partners[drawn] = np.roll(drawn, 1)
        starts = np.array([_start(examples[number]) for number in range(len(examples))])
        lengths = np.asarray(examples.lengths)
        self.longest = int(lengths.max())
        self._lengths = np.minimum(starts + (lengths - starts)[self.partners], self.longest)

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """Tokens of each."""
        return self._lengths

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.partners)

    def __getitem__(self, index: int, /) -> UnpairedExample:
        """Return one prompt with its answer."""
        asked, said = self.examples[index], cast(UnpairedExample, self.examples[int(self.partners[index])])
        read, start = _start(asked), _start(said)
        learnt = slice(start, start + self.longest - read)
        tokens = np.concatenate([asked.tokens[:read], said.tokens[learnt]])
        trained = np.concatenate([np.zeros(read, dtype=np.bool_), said.trained[learnt]])
        return UnpairedExample(f"{asked.id} with the answer of {said.id}", tokens, trained, said.desirable)


def with_baseline(step: Step, whole: Sequence[UnpairedExample], baseline: float) -> Step:
    """Return this process's part of a step as answers that know what they are measured from; `whole` is all of the step."""
    desirable = sum(one.desirable for one in whole)
    counts = {
        True: desirable,
        False: desirable - len(whole),
    }  # the answers that are not desirable count against the margin
    shares = {side: len(whole) / count if desirable * counts[False] else 0.0 for side, count in counts.items()}
    scale = (len(whole) / desirable) ** 2 if desirable else 0.0
    batches = [
        [_sample(one, baseline, shares, scale) for one in cast(Sequence[UnpairedExample], batch)]
        for batch in step.batches
    ]
    return replace(step, batches=batches)


def _sample(one: UnpairedExample, baseline: float, shares: dict[bool, float], ftx_scale: float) -> UnpairedSample:
    return UnpairedSample(one.id, one.tokens, one.trained, one.desirable, baseline, shares[one.desirable], ftx_scale)
