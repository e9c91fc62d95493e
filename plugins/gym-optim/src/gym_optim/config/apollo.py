"""The options of APOLLO."""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from gym_optim.config.base import AdamOptions, Groups, PerParameter, WholeParameters, total_bytes
from gym_optim.parameter_roles import SomeNames, is_matrix, is_named


class APOLLO(AdamOptions, PerParameter, WholeParameters):
    """The gradient itself, each channel scaled by what Adam does to a random projection of it.

        R = P G,  P drawn from N(0, 1/r), another one every `update_proj_gap` steps
        M = beta1 M + (1 - beta1) R,  V = beta2 V + (1 - beta2) R^2
        N = (M / (1 - beta1^t)) / (sqrt(V / (1 - beta2^t)) + epsilon)
        s_j = |N_j| / (|R_j| + 1e-8)     for each column j; `scale_type: tensor`: for all
        U = G diag(s),  U = U min(1, 1.01 |U of the step before| / |U|)
        W = (1 - eta lambda) W - eta sqrt(scale) U

    W, G and U are m x n with m <= n, else all is transposed; P is r x m, R, M, V and N are r x n, and r is `rank`, or m where
    that is less. sqrt(scale) is the alpha of the paper. Each expert of a stack is a matrix of its own. Embeddings, head,
    norms, biases, single rows or columns and what `target_modules` does not name get AdamW.

    State: 8 r max + 4 bytes for a matrix whose long side is max; 8 a number of everything else.

    Code: ours, from the paper: the reference has a licence against commercial use.

    Differs: P is drawn again from a seed in each step and never stored; each matrix and each interval has its own.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.
    """

    target: ClassVar[str] = "gym_optim.optimizers.apollo:APOLLO"

    rank: PositiveInt = 256
    """Dimensions of the projected gradient; a quarter of the model's is usual."""
    update_proj_gap: PositiveInt = 200
    """Steps between two projections."""
    scale: PositiveFloat = 1.0
    """The update is multiplied by its square root."""
    scale_type: Literal["channel", "tensor"] = "channel"
    """Whether each channel along the long side of a matrix is scaled by itself, or the whole matrix as one."""
    target_modules: SomeNames = "all"
    """Matrices inside the model that are projected, such as `q_proj,v_proj`, or `all`."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the projections."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-6
    """Added to the denominator."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments [rank, long side] and a norm for each matrix, and of full moments for the rest."""
        return total_bytes(
            parameters,
            lambda group, name, shape: (
                prod(shape[:-2]) * (8 * min(self.rank, *shape[-2:]) * max(shape[-2:]) + 4)
                if is_matrix(group, shape) and is_named(name, self.target_modules)
                else 8 * prod(shape)
            ),
        )
