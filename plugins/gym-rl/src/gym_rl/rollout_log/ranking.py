"""The best and the worst completions of a round, and what there is to say of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gym_rl.rollout_log.files import Sample


@dataclass(frozen=True)
class Ranking:
    """What `gym rollouts show` prints."""

    steps: tuple[int, int]
    answers: int
    prompts: int
    judged: int  #: completions that have a reward
    reward: float | None  #: mean over these
    truncated: int  #: completions that the model did not end
    best: list[Sample]  #: the best first
    worst: list[Sample]  #: the worst first


def rank(samples: Sequence[Sample], best: int, worst: int) -> Ranking:
    """Return the samples of the highest and of the lowest rewards; of equal ones the first, and none in both lists.

    What was said several times to a prompt is listed once.
    """
    judged = [sample for sample in samples if sample.reward is not None]
    once = {(sample.id, sample.answer, sample.reward): sample for sample in judged}.values()
    order = sorted(once, key=lambda sample: sample.reward or 0.0, reverse=True)
    rest = sorted(order[best:], key=lambda sample: sample.reward or 0.0)
    return Ranking(
        samples[0].steps,
        len(samples),
        len({sample.id for sample in samples}),
        len(judged),
        fmean([sample.reward or 0.0 for sample in judged]) if judged else None,
        sum(not sample.finished for sample in samples),
        order[:best],
        rest[:worst],
    )
