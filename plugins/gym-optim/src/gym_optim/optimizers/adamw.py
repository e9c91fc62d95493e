"""AdamW (arXiv:1711.05101): torch's fused kernel, with moments in fp32 whatever the parameters are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gym_optim import config
from gym_optim.adam import adamw_step
from gym_optim.base import BaseOptimizer, evaluate_closure


class AdamW(BaseOptimizer):
    """`torch.optim.AdamW(fused=True)`, bit for bit where parameters are fp32; in bf16, that of fp32, rounded."""

    options = config.AdamW

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            adamw_step([each for each in group["params"] if each.grad is not None], self.state, group)
        return loss
