"""AdamW (arXiv:1711.05101): torch's fused kernel, with moments in fp32 whatever the parameters are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from gym_optim import config
from gym_optim.base import Checked, Parameters, adamw_step, value_of


class AdamW(Checked):
    """`torch.optim.AdamW(fused=True)`, bit for bit where parameters are fp32; in bf16, that of fp32, rounded."""

    options = config.AdamW
    whole: ClassVar[bool] = False

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Hold parameters; a group may override any option, such as `weight_decay`."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = value_of(closure)
        for group in self.param_groups:
            adamw_step([each for each in group["params"] if each.grad is not None], self.state, group)
        return loss
