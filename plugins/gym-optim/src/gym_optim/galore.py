"""GaLore (arXiv:2403.03507): Adam on the projection of a matrix's gradient onto its leading singular vectors.

Where the reference keeps moments of another basis when the projection changes, here they are brought along: the first by
the rotation between the bases, the second by its squares, which is exact where coordinates are uncorrelated. The basis
comes from the eigenvectors of the gradient's Gram matrix on its short side, many times faster than a full SVD and as good
for leading vectors.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from gym_optim.base import Mixed, Parameters, State, adam_direction
from gym_optim.roles import Names, is_matrix, is_named

Side = Literal["short", "long", "left", "right"]


class GaLore(Mixed):
    """Moments of `rank` rows instead of all; matrices inside the model have them, the rest is AdamW's."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-2,
        rank: int = 128,
        interval: int = 200,
        scale: float = 0.25,
        side: Side = "short",
        modules: Names = "all",
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Hold parameters.

        Args:
            params: tensors, named tensors or groups of them.
            lr: learning rate.
            rank: dimensions of the projected gradient; at most those of the matrix.
            interval: steps between two projections.
            scale: of the update of a projected matrix.
            side: of the matrix that is projected.
            modules: which matrices are, by a part of their names; `all` for every one.
            beta1: decay of the running mean of the gradient.
            beta2: decay of the running mean of its square.
            epsilon: added to the denominator.
            weight_decay: share of each parameter taken away per step, times the learning rate.

        """
        options = {"lr": lr, "rank": rank, "interval": interval, "scale": scale, "side": side, "modules": modules}
        adam = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        super().__init__(params, options | adam)

    def owns(self, group: dict[str, Any], name: str, parameter: Tensor) -> bool:
        """Take the matrices inside the model that `modules` names."""
        return is_matrix(group, tuple(parameter.shape)) and is_named(name, group["modules"])

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step."""
        upright = is_left(group["side"], tuple(parameter.shape))
        tall = gradient if upright else gradient.T  # the first dimension is the one that is projected
        self.project(tall, state, group)
        direction = self.direction(tall, state, group)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction if upright else direction.T, alpha=-group["lr"] * group["scale"])

    def project(self, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Choose a basis for the gradient, [dim, other], where one is due, and bring the moments along."""
        if state.get("step", 0) % group["interval"]:
            return
        basis = leading(gradient, group["rank"])
        if "basis" in state:
            change = basis.T @ state["basis"]
            state["exp_avg"], state["exp_avg_sq"] = rotated(state["exp_avg"], state["exp_avg_sq"], change)
        state["basis"] = basis

    def direction(self, gradient: Tensor, state: State, group: dict[str, Any]) -> Tensor:
        """Return the direction of the update, [dim, other]."""
        basis = state["basis"]  # [dim, rank]
        return basis @ adam_direction(basis.T @ gradient, state, group)


def is_left(side: Side, shape: tuple[int, ...]) -> bool:
    """Whether it is the rows that are projected, so that the basis multiplies from the left."""
    return {"left": True, "right": False, "short": shape[0] <= shape[1], "long": shape[0] > shape[1]}[side]


def leading(gradient: Tensor, rank: int) -> Tensor:
    """Return an orthonormal basis of the leading left singular vectors of a gradient, [dim, rank at most]."""
    short = gradient.shape[0] <= gradient.shape[1]
    gram = gradient @ gradient.T if short else gradient.T @ gradient
    exact = torch.promote_types(gram.dtype, torch.float32)  # there is no decomposition below fp32
    vectors = torch.linalg.eigh(gram.to(exact)).eigenvectors[:, -min(rank, *gradient.shape) :].flip(-1)
    basis = vectors if short else torch.linalg.qr(gradient.to(exact) @ vectors).Q
    return basis.to(gradient.dtype).contiguous()


def rotated(mean: Tensor, square: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
    """Return the moments [old, other] in another basis; `change` is [new, old] and holds the cosines between the two."""
    return change @ mean, change.square() @ square
