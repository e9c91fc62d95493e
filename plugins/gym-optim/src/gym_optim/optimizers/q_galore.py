"""Q-GaLore (arXiv:2407.08296): GaLore with a 4-bit basis, 8-bit moments, and rarer projections where they hardly change.

The paper keeps weights in int8 as well; what trains in Gym is fp32, and so it is here.
"""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, pad

from gym_optim import config
from gym_optim.base import State
from gym_optim.blockwise_quantization import BLOCK, load_moment, quantize_moment
from gym_optim.optimizers.galore import GaLore, correct_bias, leading_singular_vectors, rotate_moments

MOMENTS = {"exp_avg": True, "exp_avg_sq": False}  #: and whether they have a sign


class QGaLore(GaLore):
    """About a quarter of the state of GaLore. A matrix whose basis stays alike doubles its interval.

    The state of a stack of matrices, and of one, has a row for each: codes [matrices, numbers], scales [matrices, blocks].
    """

    options = config.QGaLore
    default_lr: ClassVar[float] = 4e-3

    def project(self, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Choose a basis for each matrix of a gradient [..., dim, other] for which one is due, and say when the next one is."""
        count, (dim, other) = prod(gradient.shape[:-2]), gradient.shape[-2:]
        if not state:
            state |= {"step": 0, "due": [0] * count, "interval": [group["update_proj_gap"]] * count}
            state["cosines"] = [[] for _ in range(count)]
        due = [number for number, when in enumerate(state["due"]) if state["step"] >= when]
        if due and "basis_codes" in state:  # what has no gradient in this step keeps its basis, and waits
            told = gradient.reshape(count, -1).any(-1).tolist()
            due = [number for number in due if told[number]]
        if not due:
            return
        basis = leading_singular_vectors(gradient.reshape(count, dim, other)[due], group["rank"])  # [due, dim, rank]
        if "basis_codes" in state:
            rank = basis.shape[-1]
            before = dequantize_basis(state, dim, rank)[due]
            for number, cosine in zip(
                due, cosine_similarity(before[..., 0], basis[..., 0]).abs().tolist(), strict=True
            ):
                self._remember(number, cosine, state, group)
            held = gradient.new_empty(count, rank * other)
            mean, square = (
                load_moment(state, name, held, signed)[due].unflatten(-1, (rank, other))
                for name, signed in MOMENTS.items()
            )
            mean, square, state["mass"][due] = rotate_moments(mean, square, state["mass"][due], basis.mT @ before)
            for key, rows in _quantize_moments(mean.flatten(-2), square.flatten(-2)).items():
                state[key][due] = rows
            for key, rows in quantize_basis(basis).items():
                state[key][due] = rows
        else:
            state |= quantize_basis(basis) | {"mass": gradient.new_zeros(count, basis.shape[-1])}
        for number in due:
            state["due"][number] = state["step"] + state["interval"][number]

    def _remember(self, number: int, cosine: float, state: State, group: dict[str, Any]) -> None:
        cosines = [*state["cosines"][number], cosine][-group["queue_size"] :]
        stays = len(cosines) == group["queue_size"] and sum(cosines) >= group["cos_threshold"] * len(cosines)
        state["cosines"][number] = [] if stays else cosines
        state["interval"][number] *= 2 if stays else 1

    def direction(self, gradient: Tensor, state: State, group: dict[str, Any]) -> Tensor:
        """Return the direction of the update, [..., dim, other]."""
        count, (dim, other) = prod(gradient.shape[:-2]), gradient.shape[-2:]
        beta1, beta2 = group["betas"]
        rank = min(group["rank"], dim, other)
        basis = dequantize_basis(state, dim, rank)  # [matrices, dim, rank]
        kept = basis.mT @ gradient.reshape(count, dim, other)  # [matrices, rank, other]
        flat = kept.flatten(-2)
        state["step"] += 1
        mean = load_moment(state, "exp_avg", flat, signed=True).lerp_(flat, 1 - beta1)
        square = load_moment(state, "exp_avg_sq", flat, signed=False).mul_(beta2).addcmul_(flat, flat, value=1 - beta2)
        state |= _quantize_moments(mean, square)
        return (basis @ correct_bias(mean.view_as(kept), square.view_as(kept), state, group)).view(gradient.shape)


def _quantize_moments(mean: Tensor, square: Tensor) -> dict[str, Tensor]:
    """Return moments [matrices, numbers] as codes."""
    return quantize_moment("exp_avg", mean, signed=True) | quantize_moment("exp_avg_sq", square, signed=False)


def quantize_basis(basis: Tensor) -> dict[str, Tensor]:
    """Return bases [matrices, dim, rank] as 4-bit codes, two in a byte, and the largest magnitude of each block."""
    flat = basis.flatten(-2)
    numbers = flat.shape[-1]
    blocks = pad(flat, (0, -numbers % BLOCK)).unflatten(-1, (-1, BLOCK))
    scales = blocks.abs().amax(-1, keepdim=True)
    codes = (blocks / scales.clamp(min=torch.finfo(basis.dtype).tiny) * 7).round().add_(7).to(torch.uint8).flatten(-2)
    codes = codes[..., : numbers + numbers % 2]
    return {"basis_codes": codes[..., ::2] * 16 + codes[..., 1::2], "basis_scales": scales.squeeze(-1).clone()}


def dequantize_basis(state: State, dim: int, rank: int) -> Tensor:
    """Return the bases, [matrices, dim, rank], in the dtype of their scales."""
    numbers, scales = dim * rank, state["basis_scales"]
    codes = torch.stack([state["basis_codes"] // 16, state["basis_codes"] % 16], dim=-1).flatten(-2)[..., :numbers]
    magnitudes = scales.repeat_interleave(BLOCK, dim=-1)[..., :numbers]
    return ((codes.to(scales.dtype) - 7) / 7 * magnitudes).unflatten(-1, (dim, rank))
