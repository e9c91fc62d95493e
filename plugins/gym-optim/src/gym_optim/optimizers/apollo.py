"""APOLLO (arXiv:2412.05270): the gradient itself, scaled by what Adam would do to a random projection of it.

Written from the paper. The projection is drawn again from a seed whenever it is needed and is never stored.
"""

from __future__ import annotations

from hashlib import blake2b
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from gym_optim import config
from gym_optim.adam import adam_direction
from gym_optim.aux_adamw import WithAuxAdamW, check_modules
from gym_optim.base import Parameters, State
from gym_optim.optimizers.fira import TINY, limit_norm_growth
from gym_optim.parameter_roles import is_matrix, is_named


class APOLLO(WithAuxAdamW):
    """Moments of `rank` rows, and no decomposition; matrices inside the model have them, the rest is AdamW's."""

    options = config.APOLLO
    default_lr: ClassVar[float] = 1e-2

    def __init__(self, params: Parameters, lr: float | None = None, **options: Any) -> None:
        """Hold parameters. Raises GymError too where `target_modules` names what there is not."""
        self._numbers: dict[Tensor, int] = {}
        self._count = 0
        super().__init__(params, lr, **options)
        check_modules(self, self.defaults["target_modules"])

    def owns(self, group: dict[str, Any], name: str, parameter: Tensor) -> bool:
        """Take the matrices inside the model that `target_modules` names."""
        return is_matrix(group, tuple(parameter.shape)) and is_named(name, group["target_modules"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, and number their matrices, each of which has projections of its own."""
        before = len(self.param_groups)
        super().add_param_group(param_group)
        for group in self.param_groups[before:]:
            for parameter in group["params"] if group["own"] else ():
                self._numbers[parameter] = self._count
                self._count += prod(parameter.shape[:-2])

    def init_state(self, parameter: Tensor) -> State:
        """Return the number of the first matrix of a parameter."""
        return {"number": self._numbers[parameter]}

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step."""
        upright = gradient.shape[-2] <= gradient.shape[-1]
        wide = gradient if upright else gradient.mT  # [..., short, long]
        period = state.get("step", 0) // group["update_proj_gap"]
        numbers = range(state["number"], state["number"] + prod(wide.shape[:-2]))
        projections = [
            random_projection(wide, group["rank"], f"{group['seed']}/{number}/{period}") for number in numbers
        ]
        kept = torch.stack(projections).view(*wide.shape[:-2], *projections[0].shape) @ wide  # [..., rank, long]
        adam = adam_direction(kept, state, group)
        across = -2 if group["scale_type"] == "channel" else (-2, -1)
        # [..., 1, long or 1]
        factor = adam.norm(dim=across, keepdim=True) / (kept.norm(dim=across, keepdim=True) + TINY)
        scaled = limit_norm_growth(wide * factor, state)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(scaled if upright else scaled.mT, alpha=-group["lr"] * group["scale"] ** 0.5)


def random_projection(gradient: Tensor, rank: int, seed: str) -> Tensor:
    """Return a random projection of the short side of a gradient [..., dim, other]: [rank, dim], entries from N(0, 1 / rank)."""
    generator = torch.Generator(gradient.device)
    generator.manual_seed(int.from_bytes(blake2b(seed.encode(), digest_size=8).digest()) >> 1)
    dim = gradient.shape[-2]
    rows = min(rank, dim)
    return torch.randn((rows, dim), generator=generator, device=gradient.device, dtype=gradient.dtype) / rows**0.5
