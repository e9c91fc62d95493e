"""Q-GaLore (arXiv:2407.08296): GaLore with a 4-bit basis, 8-bit moments, and rarer projections where they hardly change.

The paper keeps weights in int8 as well; what trains in Gym is fp32, and so it is here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from gym_optim.base import State
from gym_optim.galore import GaLore, leading, rotated
from gym_optim.quantized import BLOCK, adam8bit_direction, read, write


class QGaLore(GaLore):
    """About a quarter of the state of GaLore. A matrix whose basis stays alike doubles its interval."""

    def __init__(self, params: Any, lr: float = 4e-3, alike: float = 0.4, remembered: int = 5, **options: Any) -> None:
        """Hold parameters; the other options are GaLore's.

        An interval doubles when the mean cosine between the first vectors of the last `remembered` pairs of bases is
        `alike` or more.
        """
        self._adaptive = {"alike": alike, "remembered": remembered}
        super().__init__(params, lr=lr, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters."""
        super().add_param_group({**self._adaptive, **param_group})

    def project(self, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Choose a basis when one is due, and say when the next one is."""
        step = state.get("step", 0)
        if step < state.get("due", 0):
            return
        basis, interval = leading(gradient, group["rank"]), state.get("interval", group["interval"])
        if "basis_codes" in state:
            before = unpacked(state, basis)
            cosine = torch.nn.functional.cosine_similarity(before[:, 0], basis[:, 0], dim=0).abs().item()
            state["cosines"] = [*state["cosines"], cosine][-group["remembered"] :]
            if len(state["cosines"]) == group["remembered"] and sum(state["cosines"]) >= group["alike"] * len(
                state["cosines"]
            ):
                interval, state["cosines"] = 2 * interval, []
            kept = basis.new_empty(basis.shape[1], gradient.shape[1])
            moments = read(state, "exp_avg", kept, signed=True), read(state, "exp_avg_sq", kept, signed=False)
            mean, square = rotated(*moments, basis.T @ before)
            write(state, "exp_avg", mean, signed=True)
            write(state, "exp_avg_sq", square, signed=False)
        else:
            state["cosines"] = []
        state |= {"interval": interval, "due": step + interval}
        pack(basis, state)

    def direction(self, gradient: Tensor, state: State, group: dict[str, Any]) -> Tensor:
        """Return the direction of the update, [dim, other]."""
        rank = min(group["rank"], *gradient.shape)
        basis = unpacked(state, gradient.new_empty(gradient.shape[0], rank))
        return basis @ adam8bit_direction(basis.T @ gradient, state, group)


def pack(basis: Tensor, state: State) -> None:
    """Store a basis as 4-bit codes, two in a byte, and the largest magnitude of each block."""
    flat = basis.reshape(-1)
    blocks = pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(-1, keepdim=True)
    codes = (blocks / scales.clamp(min=torch.finfo(basis.dtype).tiny) * 7).round().add_(7).to(torch.uint8).view(-1)
    codes = codes[: flat.numel() + flat.numel() % 2]
    state["basis_codes"] = codes[::2] * 16 + codes[1::2]
    state["basis_scales"] = scales.squeeze(-1).clone()


def unpacked(state: State, like: Tensor) -> Tensor:
    """Return the basis in the shape and dtype of `like`."""
    codes = torch.stack([state["basis_codes"] // 16, state["basis_codes"] % 16], dim=-1).view(-1)[: like.numel()]
    scales = state["basis_scales"].repeat_interleave(BLOCK)[: like.numel()]
    return ((codes.to(like.dtype) - 7) / 7 * scales).view_as(like)
