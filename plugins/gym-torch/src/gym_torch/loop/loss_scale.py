"""Dynamic loss scaling (arXiv:1710.03740, section 3.2): what keeps small gradients of fp16 from being 0.

The loss is multiplied by a scale before the backward pass, and gradients are divided by it afterwards. Where they are not finite
the scale was too large: it is halved, and the step updates nothing. After many finite steps it is doubled. What decides is the
norm of the gradient over all processes, which each of them knows: they agree without asking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gym_core.train import Scaling

LARGEST = 2.0**127  #: a finite number in fp32, and its double is none


class LossScale:
    """The scale, and when it changes: as `torch.amp.GradScaler` has it, with the hysteresis and the minimum of DeepSpeed."""

    def __init__(self, options: Scaling) -> None:
        """Begin with the first scale."""
        self.options = options
        self.scale = options.init_scale
        self.finite = 0  #: steps since the scale changed, or one overflowed
        self.patience = options.hysteresis  #: overflows until the scale is halved

    @torch.no_grad()
    def unscale(self, weights: Sequence[nn.Parameter]) -> None:
        """Divide the gradients of weights by the scale, in place."""
        found = [weight.grad for weight in weights if weight.grad is not None]
        if found:
            torch._foreach_mul_(found, 1.0 / self.scale)

    def overflowed(self) -> bool:
        """Take note of gradients that are not finite; return False, and change nothing, where no smaller scale is allowed."""
        if self.patience == 1 and self.scale <= self.options.min_loss_scale:
            return False
        self.finite = 0
        if self.patience == 1:
            self.scale = max(self.scale / 2, self.options.min_loss_scale)
        else:
            self.patience -= 1
        return True

    def passed(self) -> None:
        """Take note of gradients that are finite."""
        self.finite += 1
        if self.finite == self.options.growth_interval:
            self.scale, self.finite = min(2 * self.scale, LARGEST), 0
            self.patience = self.options.hysteresis

    def state_dict(self) -> dict[str, float]:
        """Return it as plain data."""
        return {"scale": self.scale, "finite": self.finite, "patience": self.patience}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned."""
        self.scale, self.finite, self.patience = state["scale"], state["finite"], state["patience"]
