"""Losses of pairs that hold the policy to its reference token by token (TDPO, arXiv:2404.11999). Pure functions of tensors.

A log-ratio is `log p(response) - log p_reference(response)`, and a KL is the sum over the tokens of a response of
KL(reference || policy) over the vocabulary: `[pairs]`, in nats.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gym_torch.compared_policy import beside_reference


def compared(logits: Tensor, reference: Tensor, targets: Tensor) -> Tensor:
    """Return, for each row, log p(target), log p_reference(target) and KL(reference || policy): `[rows, 3]`.

    Args:
        logits: `[rows, vocabulary]` of the policy.
        reference: `[rows, vocabulary of the reference]`, logits of the reference.
        targets: `[rows]` int64.

    """
    own = logits.log_softmax(1)
    known, kl = beside_reference(own, reference)
    return torch.stack([*(each.gather(1, targets[:, None])[:, 0] for each in (own, known)), kl], 1)


def tdpo1(chosen: Tensor, rejected: Tensor, chosen_kl: Tensor, rejected_kl: Tensor, beta: float) -> Tensor:
    """Return the losses `[pairs]` of TDPO1: the chosen response may depart as far as the rejected one does.

    Args:
        chosen: `[pairs]`, log-ratios of the chosen responses.
        rejected: `[pairs]`, log-ratios of the rejected ones.
        chosen_kl: `[pairs]`, KL over the chosen responses.
        rejected_kl: `[pairs]`, KL over the rejected ones.
        beta: what a nat counts.

    """
    return -logsigmoid(beta * (chosen - rejected - (rejected_kl - chosen_kl)))


def tdpo2(
    chosen: Tensor, rejected: Tensor, chosen_kl: Tensor, rejected_kl: Tensor, beta: float, alpha: float
) -> Tensor:
    """Return the losses `[pairs]` of TDPO2: the KL of the chosen responses is a constant, and both count `alpha`.

    With an `alpha` of 0 it is DPO. The arguments are those of `tdpo1`.
    """
    return -logsigmoid(beta * (chosen - rejected - alpha * (rejected_kl - chosen_kl.detach())))
