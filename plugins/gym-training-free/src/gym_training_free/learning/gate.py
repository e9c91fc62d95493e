"""Whether a change of the library did harm: old and new on the same questions with the same seeds, and a sign test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import comb
from statistics import fmean
from typing import Any

from gym_training_free.learning.answering import Attempt


@dataclass(frozen=True)
class Comparison:
    """Two libraries, pair by pair."""

    pairs: int  #: answers that both have a reward for
    better: int  #: pairs in which the new one earned more
    worse: int
    old: float  #: mean rewards of the pairs
    new: float
    p_harm: float  #: probability of so many worse ones among those that differ, were the two equally good

    @property
    def gain(self) -> float:
        """How much more the new one earns on average."""
        return self.new - self.old

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def compare(old: Sequence[Sequence[Attempt]], new: Sequence[Sequence[Attempt]]) -> Comparison | None:
    """Return how two libraries did on the same questions and samples; None where no pair has rewards.

    Where the old one was answered and the new one was not, that is worse, and earns nothing: a library may leave a model no room.
    An answer that nobody can judge is worse than one that has a reward, and counts in no mean.
    """
    both = [pair for first, second in zip(old, new, strict=True) for pair in zip(first, second, strict=True)]
    judged = [(one.reward, other.reward) for one, other in both]
    pairs = [(a, b) for a, b in judged if a is not None and b is not None]
    lost = [one.reward for one, other in both if one.reward is not None and other.reply is None]
    said = [(one.reward, other.reward) for one, other in both if one.reply is not None and other.reply is not None]
    gained, mute = (sum(x is None and y is not None for x, y in side) for side in (said, [(b, a) for a, b in said]))
    better = sum(b > a for a, b in pairs) + gained
    worse = sum(b < a for a, b in pairs) + len(lost) + mute
    pairs += [(reward, min(0.0, reward)) for reward in lost]
    if not pairs:
        return None
    means = fmean(a for a, _ in pairs), fmean(b for _, b in pairs)
    return Comparison(len(pairs), better, worse, *means, sign_test(worse, better + worse))


def sign_test(worse: int, different: int) -> float:
    """Return P(X >= worse) for X of Binomial(different, 1/2): the one-sided sign test."""
    return sum(comb(different, count) for count in range(worse, different + 1)) / 2**different
