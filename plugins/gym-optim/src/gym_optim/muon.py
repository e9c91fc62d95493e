"""Muon for the matrices inside the model, and AdamW for the rest.

The update of a matrix is scaled so that its root mean square is AdamW's (arXiv:2502.16982): one learning rate suits both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gym_optim.base import Mixed, Parameters, State

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  #: of a quintic that is steep at zero
STEPS = 5
RMS = 0.2  #: root mean square of an update of AdamW


class Muon(Mixed):
    """Momentum, orthogonalized: half the state of AdamW. Stacked experts, of three dimensions, are AdamW's."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        beta1: float = 0.9,
        beta2: float = 0.95,
        epsilon: float = 1e-8,
    ) -> None:
        """Hold parameters; `momentum` and `nesterov` are Muon's, the betas and `epsilon` those of AdamW."""
        own = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(params, own | {"beta1": beta1, "beta2": beta2, "epsilon": epsilon})

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step."""
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        mean: Tensor = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        direction = orthogonal(gradient.lerp(mean, group["momentum"]) if group["nesterov"] else mean)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction, alpha=-group["lr"] * RMS * max(parameter.shape) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Return about `U V^T` of a matrix `U S V^T`: five Newton-Schulz steps leave singular values between 0.68 and 1.135.

    In bf16 on CUDA, which that noise allows; on a processor, where bf16 may be emulated, in the matrix's own precision.
    """
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    found = wide.bfloat16() if matrix.is_cuda else wide
    found = found / found.norm().clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return (found.T if wide is not matrix else found).to(matrix.dtype)
