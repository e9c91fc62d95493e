"""AdamW whose moments are 8-bit codes (arXiv:2110.02861): dynamic tree quantization in blocks of 256.

In plain torch, so that it runs wherever torch does; one tensor at a time is held in full precision during its step. Small
tensors, embeddings and vectors keep 32 bits, as the paper has it.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from gym_optim import config
from gym_optim.base import Mixed, Parameters, State
from gym_optim.roles import is_inside

BLOCK = 256  #: numbers that share a scale


class AdamW8bit(Mixed):
    """A quarter of the state of AdamW, with its learning rate.

    Where nobody says what parameters are, embeddings have 8 bits too.
    """

    options = config.AdamW8bit
    tables_too: ClassVar[bool] = True

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        smallest: int = 4096,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Hold parameters; those of fewer numbers than `smallest` keep 32 bits."""
        adam = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, adam | {"smallest": smallest})

    def owns(self, group: dict[str, Any], name: str, parameter: Tensor) -> bool:
        """Take what is large and inside the model."""
        return is_inside(group, tuple(parameter.shape)) and parameter.numel() >= group["smallest"]

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step in full precision and store the moments in 8 bits."""
        beta1, beta2 = group["betas"]
        flat = gradient.reshape(-1)
        state["step"] = state.get("step", 0) + 1
        mean = read(state, "exp_avg", flat, signed=True).lerp_(flat, 1 - beta1)
        square = read(state, "exp_avg_sq", flat, signed=False).mul_(beta2).addcmul_(flat, flat, value=1 - beta2)
        state |= stored("exp_avg", mean, signed=True) | stored("exp_avg_sq", square, signed=False)
        spread = square.div_(1 - beta2 ** state["step"]).sqrt_().add_(group["eps"])
        direction = mean.div_(spread.mul_(1 - beta1 ** state["step"])).view_as(gradient)
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"])


def read(state: State, name: str, like: Tensor, signed: bool) -> Tensor:
    """Return a moment in full precision, [..., numbers], zero where there is none yet."""
    if f"{name}_codes" not in state:
        return torch.zeros_like(like)
    values = code(signed, like.device, like.dtype)[state[f"{name}_codes"].int()]
    scales = state[f"{name}_scales"].repeat_interleave(BLOCK, dim=-1)[..., : values.shape[-1]]
    return values.mul_(scales)


def stored(name: str, value: Tensor, signed: bool) -> dict[str, Tensor]:
    """Return a moment [..., numbers] as codes, and the largest magnitude of each block, [..., blocks]."""
    numbers = value.shape[-1]
    blocks = pad(value, (0, -numbers % BLOCK)).unflatten(-1, (-1, BLOCK))
    scales = blocks.abs().amax(-1, keepdim=True)
    points = code(signed, value.device, value.dtype)
    codes = torch.bucketize(blocks / scales.clamp(min=torch.finfo(value.dtype).tiny), (points[1:] + points[:-1]) / 2)
    codes = codes.to(torch.uint8).flatten(-2)[..., :numbers].clone()
    return {f"{name}_codes": codes, f"{name}_scales": scales.squeeze(-1).clone()}


@cache
def code(signed: bool, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the 256 numbers in [-1, 1] or (0, 1] that codes stand for, ascending.

    Dynamic tree quantization: the leading zeros of a code say the power of ten, the bits that are left divide the decade
    evenly. Without sign there is no zero: a second moment that became nothing would make the next step huge.
    """
    bits = 6 if signed else 7  # for exponent and fraction
    found = [0.0, 1.0] if signed else [1.0]
    for exponent in range(bits + 1):
        count = 2 ** (bits - exponent)
        edges = [0.1 + 0.9 * number / count for number in range(count + 1)]
        middles = [(low + high) / 2 * 10.0**-exponent for low, high in pairwise(edges)]
        found += middles + ([-middle for middle in middles] if signed else [])
    return torch.tensor(sorted(found), dtype=dtype, device=device)
