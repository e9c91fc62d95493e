"""Losses of pairs. All are pure functions: no model, no loop, no options object.

`chosen` (w) and `rejected` (l), `[n]`, say how much more likely the policy finds each response than the reference does, in
nats: `log p(response) - log p_reference(response)`, or `log p(response)` where an algorithm has no reference; summed over the
tokens of the response, or their mean where the configuration says `per_token`. What comes back is `[n]`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

CERTAIN = -1e-12  #: log-probability above which a response counts as that likely: at 0 its odds have no logarithm


def dpo(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return `-log sigmoid(beta (w - l))`: DPO, arXiv:2305.18290, equation 7."""
    return -logsigmoid(beta * (chosen - rejected))


def cdpo(chosen: Tensor, rejected: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """Return DPO's loss of the pair and of its reverse, mixed by how often labels are wrong: conservative DPO.

    arXiv:2305.18290 with the labels of ericmitchell.ai/cdpo.pdf, equation 3.
    """
    keep, flip = dpo(chosen, rejected, beta), dpo(rejected, chosen, beta)
    return (1 - label_smoothing) * keep + label_smoothing * flip


def robust_dpo(chosen: Tensor, rejected: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """Return what has DPO's loss as its mean where labels are wrong that often: arXiv:2403.00409, equation 12."""
    keep, flip = dpo(chosen, rejected, beta), dpo(rejected, chosen, beta)
    return ((1 - label_smoothing) * keep - label_smoothing * flip) / (1 - 2 * label_smoothing)


def ipo(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return `(w - l - 1 / (2 beta))^2`: IPO, arXiv:2310.12036, equation 17, whose tau is `beta`."""
    return (chosen - rejected - 1 / (2 * beta)) ** 2


def hinge(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return `max(0, 1 - beta (w - l))`: SLiC as arXiv:2309.06657 normalises it, equation 10."""
    return torch.relu(1 - beta * (chosen - rejected))


def bco_pair(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return `-log sigmoid(beta w) - log sigmoid(-beta l)`: BCO on both responses, arXiv:2404.04656, with no shift."""
    return -logsigmoid(beta * chosen) - logsigmoid(-beta * rejected)


def exo_pair(chosen: Tensor, rejected: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """Return KL(policy || labels) over the two responses: EXO, arXiv:2402.00856, equation 16."""
    margin = beta * (chosen - rejected)
    better, worse = logsigmoid(margin), logsigmoid(-margin)
    label = margin.new_tensor(label_smoothing)
    return better.exp() * (better - torch.log1p(-label)) + worse.exp() * (worse - label.log())


def nca_pair(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return `-log sigmoid(beta w) - (log sigmoid(-beta w) + log sigmoid(-beta l)) / 2`: NCA, arXiv:2402.05369, equation 12."""
    return -logsigmoid(beta * chosen) - (logsigmoid(-beta * chosen) + logsigmoid(-beta * rejected)) / 2


def sppo(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return `(w - 1 / (2 beta))^2 + (l + 1 / (2 beta))^2`: SPPO, arXiv:2405.00675, equation 4.7 with sure labels.

    Its eta is `1 / beta`.
    """
    return (chosen - 0.5 / beta) ** 2 + (rejected + 0.5 / beta) ** 2


def apo_zero(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return `-sigmoid(beta w) + sigmoid(beta l) + 1`: chosen up, rejected down; APO, arXiv:2408.06266, equation 7."""
    return torch.sigmoid(-beta * chosen) + torch.sigmoid(beta * rejected)


def apo_down(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return `sigmoid(beta w) - sigmoid(beta (w - l)) + 1`: both down, rejected more; APO, arXiv:2408.06266, equation 8."""
    return torch.sigmoid(beta * chosen) + torch.sigmoid(-beta * (chosen - rejected))


def discopop(chosen: Tensor, rejected: Tensor, beta: float, discopop_tau: float) -> Tensor:
    """Return DPO's loss for bad pairs and an exponential one for good pairs: DiscoPOP, arXiv:2406.08414, equation 5."""
    margin = beta * (chosen - rejected)
    good = margin / discopop_tau
    # exp(-margin) alone overflows where it counts for nothing.
    return -logsigmoid(margin) * torch.sigmoid(-good) + torch.exp(logsigmoid(good) - margin)


def simpo(chosen: Tensor, rejected: Tensor, beta: float, simpo_gamma: float) -> Tensor:
    """Return `-log sigmoid(beta (w - l) - simpo_gamma)` of mean log-probabilities: SimPO, arXiv:2405.14734, equation 6."""
    return -logsigmoid(beta * (chosen - rejected) - simpo_gamma)


def orpo(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return `-w - beta log sigmoid(log odds(w) - log odds(l))` of mean log-probabilities: ORPO, arXiv:2403.07691, equation 6.

    Its lambda is `beta`.
    """
    return -chosen - beta * logsigmoid(log_odds(chosen) - log_odds(rejected))


#: Losses that a sum may have, by the name of their algorithm: those of sums over tokens, without options but `beta`.
SUMMED = {
    "apo_down": apo_down,
    "apo_zero": apo_zero,
    "bco_pair": bco_pair,
    "dpo": dpo,
    "hinge": hinge,
    "nca": nca_pair,
    "sppo": sppo,
}


def mpo(chosen: Tensor, rejected: Tensor, beta: float, loss_weights: Mapping[str, float]) -> Tensor:
    """Return the weighted sum of losses in `SUMMED`: MPO, arXiv:2411.10442, equation 1, whose third part is that of `ftx`."""
    parts = [weight * SUMMED[name](chosen, rejected, beta) for name, weight in loss_weights.items()]
    return torch.stack(parts).sum(0)


def log_odds(log_probs: Tensor) -> Tensor:
    """Return `log(p / (1 - p))` for log-probabilities, finite and with a finite gradient for all of them."""
    inside = log_probs.clamp(max=CERTAIN)
    return inside - torch.log(-torch.expm1(inside))
