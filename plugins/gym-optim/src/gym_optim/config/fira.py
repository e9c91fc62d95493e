"""The options of Fira."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from gym_optim.config.base import Shape
from gym_optim.config.galore import ProjectedOptions


class Fira(ProjectedOptions):
    """GaLore, with what the projection leaves out added at the scale of what it keeps.

        P, R, M, V as in GaLore: R = P^T G, Adam's moments of R, brought along when P changes every `update_proj_gap` steps
        N = (M / (1 - beta1^t)) / (sqrt(V / w) + epsilon)
        S_j = (G - P R)_j |N_j| / (|R_j| + 1e-8)     for each column j
        S = S min(1, 1.01 |S of the step before| / |S|)
        W = (1 - eta lambda) W - eta scale (P N + S)

    W, G and S are m x n with m <= n, else all is transposed, or as `proj_type` says; P holds the r leading left singular
    vectors of G, m x r; R, M, V and N are r x n, w as in GaLore. The limit is on the norm of the whole of S, and lets
    everything pass after a norm of zero. Each expert of a stack is a matrix of its own. Embeddings, head, norms, biases,
    single rows or columns and what `target_modules` does not name get AdamW.

    State: 8 r max + 4 r min + 4 r + 4 bytes for a matrix of sides min and max, as GaLore and a norm; 8 a number of everything
    else.

    Code: ours, from the paper: the reference rests on GaLore's, with what is wrong there.

    Differs: moments follow the basis. `scale` multiplies the whole update; in the reference it multiplies P N, and the P R
    that is taken off G, but not S. The bias of M and V is corrected before S is limited, and decay comes before the step; in
    the reference both come after.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.
    """

    target: ClassVar[str] = "gym_optim.optimizers.fira:Fira"

    def projected(self, shape: Shape) -> int:
        """Return the bytes of GaLore, and of a norm for each matrix."""
        return super().projected(shape) + 4 * prod(shape[:-2])
