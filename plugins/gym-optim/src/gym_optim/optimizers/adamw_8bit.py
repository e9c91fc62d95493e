"""AdamW whose moments are 8-bit codes (arXiv:2110.02861): dynamic tree quantization in blocks of 256.

In plain torch, so that it runs wherever torch does; one tensor at a time is held in full precision during its step. Small
tensors, embeddings and vectors keep 32 bits, as the paper has it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from gym_optim import config
from gym_optim.aux_adamw import WithAuxAdamW
from gym_optim.base import State
from gym_optim.blockwise_quantization import load_moment, quantize_moment
from gym_optim.parameter_roles import is_inside


class AdamW8bit(WithAuxAdamW):
    """A quarter of the state of AdamW, with its learning rate.

    Where nobody says what parameters are, embeddings have 8 bits too.
    """

    options = config.AdamW8bit
    embeddings_too: ClassVar[bool] = True

    def owns(self, group: dict[str, Any], name: str, parameter: Tensor) -> bool:
        """Take what is large and inside the model."""
        return is_inside(group, tuple(parameter.shape)) and parameter.numel() >= group["min_8bit_size"]

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step in full precision and store the moments in 8 bits."""
        beta1, beta2 = group["betas"]
        flat = gradient.reshape(-1)
        state["step"] = state.get("step", 0) + 1
        mean = load_moment(state, "exp_avg", flat, signed=True).lerp_(flat, 1 - beta1)
        square = load_moment(state, "exp_avg_sq", flat, signed=False).mul_(beta2).addcmul_(flat, flat, value=1 - beta2)
        state |= quantize_moment("exp_avg", mean, signed=True) | quantize_moment("exp_avg_sq", square, signed=False)
        spread = square.div_(1 - beta2 ** state["step"]).sqrt_().add_(group["eps"])
        direction = mean.div_(spread.mul_(1 - beta1 ** state["step"])).view_as(gradient)
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"])
