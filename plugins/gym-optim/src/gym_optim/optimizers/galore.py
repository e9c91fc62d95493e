"""GaLore (arXiv:2403.03507): Adam on the projection of a matrix's gradient onto its leading singular vectors.

Where the reference keeps moments of another basis when the projection changes, here they are brought along: the first by
the rotation between the bases, the second by its squares, which is exact where coordinates are uncorrelated. A direction that
the old basis did not hold has no second moment yet, so the bias of each row is corrected by the mass that it has: the sum of
the weights of the squares in it, which is 1 - beta2^t as long as the basis stays. The basis comes from the eigenvectors of
the gradient's Gram matrix on its short side, many times faster than a full SVD and as good for leading vectors.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gym_optim import config
from gym_optim.aux_adamw import WithAuxAdamW, check_modules
from gym_optim.base import Parameters, State
from gym_optim.config.base import OptimizerConfig
from gym_optim.parameter_roles import is_matrix, is_named

ProjType = Literal["std", "reverse_std", "left", "right"]


class GaLore(WithAuxAdamW):
    """Moments of `rank` rows instead of all; matrices inside the model have them, the rest is AdamW's."""

    options: ClassVar[type[OptimizerConfig]] = config.GaLore
    default_lr: ClassVar[float] = 1e-2

    def __init__(self, params: Parameters, lr: float | None = None, **options: Any) -> None:
        """Hold parameters. Raises GymError too where `target_modules` names what there is not."""
        super().__init__(params, lr, **options)
        check_modules(self, self.defaults["target_modules"])

    def owns(self, group: dict[str, Any], name: str, parameter: Tensor) -> bool:
        """Take the matrices inside the model that `target_modules` names."""
        return is_matrix(group, tuple(parameter.shape)) and is_named(name, group["target_modules"])

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step."""
        upright = is_left(group["proj_type"], tuple(parameter.shape))
        tall = gradient if upright else gradient.mT  # [..., dim, other]: the first of both is the one that is projected
        self.project(tall, state, group)
        direction = self.direction(tall, state, group)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction if upright else direction.mT, alpha=-group["lr"] * group["scale"])

    def project(self, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Choose a basis for the gradient, [..., dim, other], where one is due, and bring the moments along.

        A gradient of zero, as of an expert without a token, has no singular vectors: there the basis stays.
        """
        if state.get("step", 0) % group["update_proj_gap"]:
            return
        basis = leading_singular_vectors(gradient, group["rank"])
        if "basis" in state:
            basis = torch.where(gradient.any(-1).any(-1)[..., None, None], basis, state["basis"])
            change = basis.mT @ state["basis"]
            moments = state["exp_avg"], state["exp_avg_sq"], state["mass"]
            state["exp_avg"], state["exp_avg_sq"], state["mass"] = rotate_moments(*moments, change)
        state["basis"] = basis

    def direction(self, gradient: Tensor, state: State, group: dict[str, Any]) -> Tensor:
        """Return the direction of the update, [..., dim, other]."""
        basis = state["basis"]  # [..., dim, rank]
        return basis @ projected_direction(basis.mT @ gradient, state, group)


def projected_direction(kept: Tensor, state: State, group: dict[str, Any]) -> Tensor:
    """Return Adam's direction for a projected gradient, [..., rank, other], and keep its moments in `state`."""
    if "exp_avg" not in state:
        state |= {"step": 0, "exp_avg": torch.zeros_like(kept), "exp_avg_sq": torch.zeros_like(kept)}
        state["mass"] = kept.new_zeros(kept.shape[:-1])
    beta1, beta2 = group["betas"]
    state["step"] += 1
    state["exp_avg"].lerp_(kept, 1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(kept, kept, value=1 - beta2)
    return correct_bias(state["exp_avg"], state["exp_avg_sq"], state, group)


def correct_bias(mean: Tensor, square: Tensor, state: State, group: dict[str, Any]) -> Tensor:
    """Return the direction that moments [..., rank, other] of this step give, each row of the second by the mass it has."""
    beta1, beta2 = group["betas"]
    mass = state["mass"].mul_(beta2).add_(1 - beta2)  # [..., rank]
    spread = (square / mass.unsqueeze(-1)).sqrt_().add_(group["eps"])
    return mean / spread.mul_(1 - beta1 ** state["step"])


def is_left(side: ProjType, shape: tuple[int, ...]) -> bool:
    """Whether it is the rows that are projected, so that the basis multiplies from the left."""
    rows, columns = shape[-2:]
    return {"left": True, "right": False, "std": rows <= columns, "reverse_std": rows > columns}[side]


def leading_singular_vectors(gradient: Tensor, rank: int) -> Tensor:
    """Return orthonormal bases of the leading left singular vectors of gradients [..., dim, other]: [..., dim, rank at most]."""
    short = gradient.shape[-2] <= gradient.shape[-1]
    gram = gradient @ gradient.mT if short else gradient.mT @ gradient
    vectors = torch.linalg.eigh(gram).eigenvectors[..., -min(rank, *gradient.shape[-2:]) :].flip(-1)
    return (vectors if short else torch.linalg.qr(gradient @ vectors).Q).contiguous()


def rotate_moments(mean: Tensor, square: Tensor, mass: Tensor, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the moments in another basis, and the mass of the second.

    Args:
        mean: first moments, [..., old, other].
        square: second moments, [..., old, other].
        mass: what the weights of the squares in each row of `square` sum to, [..., old].
        change: cosines between the bases, [..., new, old].

    """
    share = change.square()
    return change @ mean, share @ square, (share @ mass.unsqueeze(-1)).squeeze(-1)
