"""What makes up for completions that another engine or an older policy sampled: a weight for each token, without a gradient.

`ratio` is `log pi_trainer - log pi_sampler` of each sampled token, `[n]`, measured before the update. The weights multiply
the losses of tokens. With no cap they are the ratios themselves, and the gradient is unbiased.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gym_rl.formulas.importance_ratio import LIMIT
from gym_rl.formulas.segment_sums import means, sums


def tis(ratio: Tensor, cap: float = 2.0) -> Tensor:
    """Return min(exp(ratio), cap) of each token: truncated importance sampling, https://fengyao.notion.site/off-policy-rl."""
    return ratio.clamp(-LIMIT, LIMIT).exp().clamp(max=cap).detach()


def sequence_tis(ratio: Tensor, owner: Tensor, count: int, cap: float = 2.0) -> Tensor:
    """Return the ratio of the whole completion, at most `cap`, for each of its tokens."""
    return tis(sums(ratio, owner, count), cap)[owner]


def icepop(ratio: Tensor, low: float = 0.5, high: float = 5.0) -> Tensor:
    """Return exp(ratio) of the tokens where it lies between the bounds, else 0: IcePop, arXiv:2510.18855."""
    weight = ratio.clamp(-LIMIT, LIMIT).exp()
    return torch.where((weight >= low) & (weight <= high), weight, 0.0).detach()


def mis(ratio: Tensor, owner: Tensor, count: int, cap: float = 2.0) -> Tensor:
    """Return the ratio of the whole completion for each of its tokens, 0 where it is above `cap`: masked importance sampling."""
    whole = tis(sums(ratio, owner, count), math.inf)
    return torch.where(whole <= cap, whole, 0.0)[owner]


def geo(ratio: Tensor, owner: Tensor, count: int, low: float = 0.99, high: float = 1.01) -> Tensor:
    """Return 1 for tokens of completions whose mean ratio (geometric) lies between the bounds, else 0."""
    whole = tis(means(ratio, owner, count), math.inf)
    return ((whole >= low) & (whole <= high)).to(ratio.dtype)[owner]


def off_policy_mask(ratio: Tensor, advantages: Tensor, owner: Tensor, count: int, bound: float) -> Tensor:
    """Return whether each token is learnt from, bool `[n]`: DeepSeek-V3.2, arXiv:2512.02556, section 3.1.

    Not one of a negative advantage `[n]` in a completion that the policy left behind: `mean_t log(pi_sampler / pi)` above
    `bound`. Here `ratio` is that of the policy as it is now, in the update.
    """
    left = -means(ratio, owner, count) > bound
    return ~((advantages < 0) & left[owner])


def none(ratio: Tensor, owner: Tensor, count: int) -> Tensor:
    """Return 1 for every token."""
    return torch.ones_like(ratio)


#: What the key `importance_sampling_correction` names: from log-ratios `[n]`, owners `[n]` and the number of completions to
#: weights `[n]`.
CORRECTIONS: Mapping[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "none": none,
    "tis": lambda ratio, owner, count: tis(ratio),
    "sequence_tis": sequence_tis,
    "icepop": lambda ratio, owner, count: icepop(ratio),
    "mis": mis,
    "geo": geo,
}
