"""APOLLO (arXiv:2412.05270): the gradient itself, scaled by what Adam would do to a random projection of it.

Written from the paper. The projection is drawn again from a seed whenever it is needed and is never stored.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Literal

import torch
from torch import Tensor

from gym_optim.base import Mixed, Parameters, State, adam_direction
from gym_optim.fira import TINY, limited
from gym_optim.roles import Names, is_matrix, is_named

Per = Literal["channel", "tensor"]


class APOLLO(Mixed):
    """Moments of `rank` rows, and no decomposition; matrices inside the model have them, the rest is AdamW's."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-2,
        rank: int = 256,
        interval: int = 200,
        scale: float = 1.0,
        per: Per = "channel",
        modules: Names = "all",
        seed: int = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        """Hold parameters.

        Args:
            params: tensors, named tensors or groups of them.
            lr: learning rate.
            rank: dimensions of the random projection of the short side; at most those of the matrix.
            interval: steps between two projections.
            scale: the update is multiplied by its square root.
            per: whether each `channel` along the long side is scaled by itself, or the `tensor` as one.
            modules: which matrices are, by a part of their names; `all` for every one.
            seed: of the projections.
            beta1: decay of the running mean of the projected gradient.
            beta2: decay of the running mean of its square.
            epsilon: added to the denominator.
            weight_decay: share of each parameter taken away per step, times the learning rate.

        """
        options = {"lr": lr, "rank": rank, "interval": interval, "scale": scale, "per": per, "modules": modules}
        adam = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        super().__init__(params, options | adam | {"seed": seed})
        every = (parameter for group in self.param_groups for parameter in group["params"])
        self._numbers: dict[Tensor, int] = {parameter: number for number, parameter in enumerate(every)}

    def owns(self, group: dict[str, Any], name: str, parameter: Tensor) -> bool:
        """Take the matrices inside the model that `modules` names."""
        return is_matrix(group, tuple(parameter.shape)) and is_named(name, group["modules"])

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step."""
        number = self._numbers.setdefault(parameter, len(self._numbers))
        wide = gradient if gradient.shape[0] <= gradient.shape[1] else gradient.T  # [short, long]
        period = state.get("step", 0) // group["interval"]
        projection = drawn(wide, group["rank"], f"{group['seed']}/{number}/{period}")
        kept = projection @ wide  # [rank, long]
        adam = adam_direction(kept, state, group)
        across = 0 if group["per"] == "channel" else (0, 1)
        factor = adam.norm(dim=across) / (kept.norm(dim=across) + TINY)  # [long], or a scalar
        scaled = limited(wide * factor, state)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(scaled if wide is gradient else scaled.T, alpha=-group["lr"] * group["scale"] ** 0.5)


class APOLLOMini(APOLLO):
    """APOLLO of rank 1 with one factor for a whole matrix: the state of gradient descent, nearly."""

    def __init__(self, params: Parameters, lr: float = 1e-2, scale: float = 128.0, **options: Any) -> None:
        """Hold parameters; the other options are those of `APOLLO` but for `rank` and `per`."""
        super().__init__(params, lr=lr, rank=1, scale=scale, per="tensor", **options)


def drawn(gradient: Tensor, rank: int, seed: str) -> Tensor:
    """Return a random projection of the first dimension, [rank, dim], with entries from N(0, 1 / rank)."""
    generator = torch.Generator(gradient.device)
    generator.manual_seed(int.from_bytes(blake2b(seed.encode(), digest_size=8).digest()) >> 1)
    rows = min(rank, gradient.shape[0])
    shape = (rows, gradient.shape[0])
    return torch.randn(shape, generator=generator, device=gradient.device, dtype=gradient.dtype) / rows**0.5
