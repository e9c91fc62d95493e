"""The options of GaLore, and those that its kin share."""

from __future__ import annotations

from math import prod
from typing import ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from gym_optim.config.base import (
    AdamOptions,
    Groups,
    PerParameter,
    Shape,
    WholeParameters,
    total_bytes,
)
from gym_optim.parameter_roles import SomeNames, is_matrix, is_named

ProjType = Literal["std", "reverse_std", "left", "right"]


class ProjectedOptions(AdamOptions, PerParameter, WholeParameters):
    """The options of optimizers that project a gradient onto its leading singular vectors."""

    rank: PositiveInt = 128
    """Dimensions of the projected gradient; a quarter of the model's is usual."""
    update_proj_gap: PositiveInt = 200
    """Steps between two projections."""
    scale: PositiveFloat = 0.25
    """Of the update of a projected matrix."""
    proj_type: ProjType = "std"
    """Side that is projected: the shorter (`std`), the longer (`reverse_std`), the rows (`left`) or the columns (`right`)."""
    target_modules: SomeNames = "all"
    """Matrices inside the model that are projected, such as `q_proj,v_proj`, or `all`."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of a projected matrix's basis and moments, and of two moments for the rest."""
        return total_bytes(
            parameters,
            lambda group, name, shape: (
                self.projected(shape)
                if is_matrix(group, shape) and is_named(name, self.target_modules)
                else 8 * prod(shape)
            ),
        )

    def projected(self, shape: Shape) -> int:
        """Return the bytes of a basis [dim, rank], two moments [rank, other] and a mass [rank] for each matrix."""
        rank, dim, other = self.projection(shape)
        return prod(shape[:-2]) * 4 * rank * (dim + 2 * other + 1)

    def projection(self, shape: Shape) -> tuple[int, int, int]:
        """Return the rank of a projection, and the lengths of the side that is projected and of the other one."""
        sides = shape[-2:]
        dim = {"left": sides[0], "right": sides[1], "std": min(sides), "reverse_std": max(sides)}[self.proj_type]
        return min(self.rank, *sides), dim, prod(sides) // dim


class GaLore(ProjectedOptions):
    """AdamW on the leading singular vectors of each matrix's gradient.

        at t = 1 and every `update_proj_gap` steps: P' = r leading left singular vectors of G, C = P'^T P,
            M = C M, V = C^2 V, w = C^2 w, P = P'
        R = P^T G
        M = beta1 M + (1 - beta1) R
        V = beta2 V + (1 - beta2) R^2
        w = beta2 w + (1 - beta2)
        W = (1 - eta lambda) W - eta scale P (M / (1 - beta1^t)) / (sqrt(V / w) + epsilon)

    W and G are m x n with m <= n, else all is transposed, or as `proj_type` says; P is m x r, R, M and V are r x n, r is
    `rank` or m where that is less; ^2 is number by number. w has a number for each row of V: what the weights of the squares
    in it sum to, 1 - beta2^t as long as P stays. Where G is zero, P stays. Each expert of a stack is a matrix of its own.
    Embeddings, head, norms, biases, single rows or columns and what `target_modules` does not name get AdamW.

    State: 8 r max + 4 r min + 4 r bytes for a matrix of sides min and max (8 r min + 4 r max + 4 r where the long side is
    projected); 8 a number of everything else.

    Code: ours, from the paper: the reference is wrong as said below.

    Differs: M and V are brought into the new basis, M by the rotation between the bases, V by its squares, which is exact
    where coordinates are uncorrelated; the reference goes on with moments of another basis. Directions that the old basis did
    not hold have no V yet, so it is w that corrects the bias; 1 - beta2^t would take V for too small, and lengthen the step
    several times. P comes from the Gram matrix of
    the short side rather than a full SVD. Epsilon is added after the bias of V is corrected, as in the paper, and decay comes
    before the step; in the reference it is the other way round.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.
    """

    target: ClassVar[str] = "gym_optim.optimizers.galore:GaLore"
