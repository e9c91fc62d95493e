"""The responses of a step, each with the reference point that its log-ratio is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gym_data.examples import UnpairedExample
from gym_torch.source import Step


@dataclass(frozen=True)
class UnpairedSample(UnpairedExample):
    """A labelled response in its step."""

    reference_point: float = 0.0  #: what its log-ratio is measured from, in nats
    share: float = 0.0
    """What its reward counts in the margin of the step, times the responses in the step; 0 where all of them have the same
    label."""
    ftx_scale: float = 1.0
    """What its negative log-likelihood counts: the squared number of responses in the step to each good one."""


def with_reference_point(
    step: Step[UnpairedExample], whole: Sequence[UnpairedExample], reference_point: float
) -> Step[UnpairedExample]:
    """Return this process's part of a step as responses that know what they are measured from; `whole` is all of the step."""
    desirable = sum(one.desirable for one in whole)
    counts = {
        True: desirable,
        False: desirable - len(whole),
    }  # the responses that are not desirable count against the margin
    shares = {side: len(whole) / count if desirable * counts[False] else 0.0 for side, count in counts.items()}
    scale = (len(whole) / desirable) ** 2 if desirable else 0.0
    batches = [[_sample(one, reference_point, shares, scale) for one in batch] for batch in step.batches]
    return replace(step, batches=batches)


def _sample(
    one: UnpairedExample, reference_point: float, shares: dict[bool, float], ftx_scale: float
) -> UnpairedSample:
    return UnpairedSample(
        one.id,
        one.tokens,
        one.trained,
        one.desirable,
        reference_point,
        shares[one.desirable],
        ftx_scale,
        media=one.media,
        reader=one.reader,
    )
