"""The samples of a step, each with what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gym_data.examples import UnpairedExample
from gym_torch.source import Step


@dataclass(frozen=True)
class UnlearnSample(UnpairedExample):
    """An answer to keep (`desirable`) or to forget, in its step."""

    share: float = 1.0
    """What its loss counts: the samples of the step over those of them with its label, so that both labels have their mean."""


def with_shares(step: Step[UnpairedExample], keep: int, forget: int) -> Step[UnlearnSample]:
    """Return this process's part of a step whose samples know what they count; so many are there to keep and to forget in all."""
    shares = {True: (keep + forget) / max(keep, 1), False: (keep + forget) / max(forget, 1)}
    batches = [[_sample(one, shares[one.desirable]) for one in batch] for batch in step.batches]
    return Step(batches, step.epoch, step.spare)


def kept(examples: Sequence[UnpairedExample]) -> int:
    """Return how many of these are to be kept."""
    return sum(one.desirable for one in examples)


def _sample(one: UnpairedExample, share: float) -> UnlearnSample:
    return UnlearnSample(one.id, one.tokens, one.trained, one.desirable, share)
