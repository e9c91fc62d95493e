"""How the losses of tokens or completions become one number: a sum, and what the whole optimizer step divides it by.

A step adds up `total` and `weight` over all its batches and processes before it divides, so that how it is cut changes
nothing. A completion without tokens weighs as any other and adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gym_rl.formulas.segment_sums import means


class LossAggregation(Protocol):
    """A way to add up.

    `share` is the number of completions that a step had for these `count`: those that are not trained on are not among them.
    """

    def total(self, losses: Tensor, owner: Tensor, count: int) -> Tensor:
        """Return the sum of the losses `[n]` of the tokens of `count` completions, a scalar."""
        ...

    def weight(self, owner: Tensor, count: int, share: float) -> float:
        """Return the share of these completions in the denominator."""
        ...


@dataclass(frozen=True)
class TokenMean:
    """Every token counts the same: DAPO, arXiv:2503.14476, equation 8."""

    def total(self, losses: Tensor, owner: Tensor, count: int) -> Tensor:
        """Return the sum over tokens."""
        return losses.sum()

    def weight(self, owner: Tensor, count: int, share: float) -> float:
        """Return the number of tokens."""
        return float(len(owner))


@dataclass(frozen=True)
class SequenceMeanTokenMean:
    """Every completion counts the same, and its tokens share it: GRPO, arXiv:2402.03300, equation 3."""

    def total(self, losses: Tensor, owner: Tensor, count: int) -> Tensor:
        """Return the sum over completions of the mean over tokens."""
        return means(losses, owner, count).sum()

    def weight(self, owner: Tensor, count: int, share: float) -> float:
        """Return the number of completions."""
        return float(count)


@dataclass(frozen=True)
class SequenceMeanTokenSum:
    """Mean over completions of the sum over tokens: REINFORCE on whole completions, RLOO."""

    def total(self, losses: Tensor, owner: Tensor, count: int) -> Tensor:
        """Return the sum over tokens."""
        return losses.sum()

    def weight(self, owner: Tensor, count: int, share: float) -> float:
        """Return the number of completions."""
        return float(count)


@dataclass(frozen=True)
class SequenceMeanTokenSumNorm:
    """Sum over tokens, divided by a number that no length changes: Dr. GRPO, arXiv:2503.20783, appendix C.

    Nor does how many completions were too long to be trained on.
    """

    longest: int  #: most tokens that a completion may have

    def total(self, losses: Tensor, owner: Tensor, count: int) -> Tensor:
        """Return the sum over tokens."""
        return losses.sum()

    def weight(self, owner: Tensor, count: int, share: float) -> float:
        """Return the number of completions of the step times the longest that one may be."""
        return share * self.longest


#: What the key `loss_agg_mode` names, made of the most tokens that a completion may have.
AGGREGATIONS: Mapping[str, Callable[[int], LossAggregation]] = {
    "token-mean": lambda longest: TokenMean(),
    "seq-mean-token-mean": lambda longest: SequenceMeanTokenMean(),
    "seq-mean-token-sum": lambda longest: SequenceMeanTokenSum(),
    "seq-mean-token-sum-norm": SequenceMeanTokenSumNorm,
}
