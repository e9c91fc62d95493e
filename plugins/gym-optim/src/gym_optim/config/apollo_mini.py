"""The options of APOLLO-Mini."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from gym_optim.config.apollo import APOLLO


class APOLLOMini(APOLLO):
    """APOLLO of rank 1 with one factor for a whole matrix: hardly more state than gradient descent.

        R = p G,  p drawn from N(0, 1), another one every `update_proj_gap` steps
        M = beta1 M + (1 - beta1) R,  V = beta2 V + (1 - beta2) R^2
        N = (M / (1 - beta1^t)) / (sqrt(V / (1 - beta2^t)) + epsilon)
        s = |N| / (|R| + 1e-8)
        U = s G,  U = U min(1, 1.01 |U of the step before| / |U|)
        W = (1 - eta lambda) W - eta sqrt(scale) U

    W, G and U are m x n with m <= n, else all is transposed; p is a row of m, R, M, V and N are rows of n, s is one number. It
    is `apollo` with `rank: 1`, `scale_type: tensor` and `scale: 128`, whose root is the alpha of the paper. Each expert of a
    stack is a matrix of its own. Embeddings, head, norms, biases, single rows or columns and what `target_modules` does not
    name get AdamW.

    State: 8 max + 4 bytes for a matrix whose long side is max; 8 a number of everything else.

    Code: ours, from the paper: the reference has a licence against commercial use.

    Differs: p is drawn again from a seed in each step and never stored; each matrix and each interval has its own.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.
    """

    target: ClassVar[str] = "gym_optim.optimizers.apollo_mini:APOLLOMini"

    rank: PositiveInt = 1
    """Dimensions of the projected gradient."""
    scale: PositiveFloat = 128.0
    """The update is multiplied by its square root."""
    scale_type: Literal["channel", "tensor"] = "tensor"
    """Whether each channel along the long side of a matrix is scaled by itself, or the whole matrix as one."""
