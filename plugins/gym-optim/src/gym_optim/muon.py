"""Muon, as torch has it, for the matrices inside the model, and AdamW for the rest.

The update of a matrix is scaled so that its root mean square is AdamW's (arXiv:2502.16982): one learning rate suits both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gym_optim.base import Mixed, Parameters, State

#: Coefficients of the Newton-Schulz iteration, and what torch adds to a norm.
NEWTON_SCHULZ = {"ns_coefficients": (3.4445, -4.7750, 2.0315), "ns_steps": 5, "eps": 1e-7}


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
        own = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay, **NEWTON_SCHULZ}
        adam = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        super().__init__(params, own | adam | {"adjust_lr_fn": "match_rms_adamw"})
        self._muon = torch.optim.Muon([torch.nn.Parameter(torch.zeros(1, 1))])  # its groups and state are ours

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step of torch's Muon."""
        self._muon.state = self.state
        self._muon.param_groups = [{**group, "params": [parameter]}]
        self._muon.step()
