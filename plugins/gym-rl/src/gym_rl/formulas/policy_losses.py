"""Policy losses, to minimise, one number for each token or completion; `aggregate` makes one number of them.

`log_probs` and `old` `[n]` are log-probabilities of the sampled tokens under the policy and under the one that is fixed
while it is updated; `advantages` do not depend on the policy. Metrics of clipping come from `is_clipped`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gym_rl.formulas.importance_ratio import log_ratio, mean_ratio, token_ratio
from gym_rl.formulas.segment_sums import means


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None) -> Tensor:
    """Return -min(ratio A, clip(ratio, 1 - low, 1 + high) A): PPO, arXiv:1707.06347, equation 7.

    Different bounds are DAPO's (arXiv:2503.14476, equation 10). With `dual`, greater than 1, the loss of a negative
    advantage is at most `-dual A`, however large the ratio: dual clip, arXiv:1912.09729, equation 5.
    """
    loss = torch.maximum(-ratio * advantages, -ratio.clamp(1 - low, 1 + high) * advantages)
    return loss if dual is None else torch.where(advantages < 0, torch.minimum(loss, -dual * advantages), loss)


def is_clipped(ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None) -> Tensor:
    """Return whether `clipped_surrogate` takes the gradient away: a bool for each ratio."""
    held = ((ratio < 1 - low) & (advantages < 0)) | ((ratio > 1 + high) & (advantages > 0))
    return held if dual is None else held | ((ratio > dual) & (advantages < 0))


def gspo_token(
    log_probs: Tensor,
    old: Tensor,
    advantages: Tensor,
    owner: Tensor,
    count: int,
    low: float,
    high: float,
    dual: float | None = None,
) -> Tensor:
    """Return the loss of each token, `[n]`, for advantages `[n]`: GSPO-token, arXiv:2507.18071, equation 13.

    The ratio has the value of the completion's and the gradient of the token's; where all tokens of a completion have one
    advantage, the mean over its tokens is GSPO's loss in value and gradient.
    """
    whole = mean_ratio(log_probs, old, owner, count).detach()[owner]
    return clipped_surrogate(whole * (log_probs - log_probs.detach()).exp(), advantages, low, high, dual)


def cispo(log_probs: Tensor, old: Tensor, advantages: Tensor, cap: float) -> Tensor:
    """Return -sg[min(ratio, cap)] A log pi of each token, `[n]`: CISPO, arXiv:2506.13585, equation 4.

    `cap` is the largest ratio itself, not what is added to 1. No token loses its gradient.
    """
    return -token_ratio(log_probs, old).detach().clamp(max=cap) * advantages * log_probs


def reinforce(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """Return -A log pi of each token, `[n]`: Williams 1992, doi:10.1007/BF00992696."""
    return -advantages * log_probs


def sapo(log_probs: Tensor, old: Tensor, advantages: Tensor, rising: float = 1.0, falling: float = 1.05) -> Tensor:
    """Return -(4 / t) sigmoid(t (ratio - 1)) A of each token, `[n]`: SAPO, arXiv:2511.20347.

    A soft gate in place of a clip; the temperature t is `rising` where the advantage is positive, else `falling`.
    """
    temperature = torch.full_like(advantages, falling).masked_fill(advantages > 0, rising)
    return -4 / temperature * torch.sigmoid(temperature * (token_ratio(log_probs, old) - 1)) * advantages


def gmpo(
    log_probs: Tensor, old: Tensor, advantages: Tensor, owner: Tensor, count: int, low: float, high: float
) -> Tensor:
    """Return the loss of each completion, `[count]`, for advantages `[count]`: GMPO, arXiv:2507.20673, equation 4.

    The geometric mean of the ratios, each clipped in its logarithm to `-low .. high` on the side that its advantage asks for.
    """
    apart = bounded_log_ratio(log_ratio(log_probs, old), advantages[owner], low, high)
    return -means(apart, owner, count).exp() * advantages


def bounded_log_ratio(apart: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Return log-ratios `[n]`, at most `high` where the advantage `[n]` is positive, and at least `-low` elsewhere."""
    return torch.where(advantages > 0, apart.clamp(max=high), apart.clamp(min=-low))


def vespo_weight(
    ratio: Tensor, advantages: Tensor, rising: tuple[float, float], falling: tuple[float, float]
) -> Tensor:
    """Return phi(W) = W^k exp(lambda (1 - W)) for ratios of whole completions and their advantages: VESPO, arXiv:2602.10693.

    `(k, lambda)` is `rising` where the advantage is positive, else `falling`. It is 1 where the ratio is, and scales the gradient
    of `reinforce`: it is a constant, not to be differentiated.
    """
    up = advantages > 0
    power, decay = (
        torch.where(up, *(ratio.new_tensor(each) for each in pair)) for pair in zip(rising, falling, strict=True)
    )
    return (power * ratio.log() + decay * (1 - ratio)).exp()


def value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Return half the larger squared error of a value and of the value kept within `clip` of the old one, `[n]`."""
    near = old + (values - old).clamp(-clip, clip)
    return torch.maximum((values - returns) ** 2, (near - returns) ** 2) / 2
