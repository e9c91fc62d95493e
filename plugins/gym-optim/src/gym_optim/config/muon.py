"""The options of Muon."""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar

from pydantic import Field

from gym_optim.config.base import AdamOptions, Groups, PerParameter, WholeParameters, total_bytes
from gym_optim.parameter_roles import is_matrix


class Muon(AdamOptions, PerParameter, WholeParameters):
    """Momentum, orthogonalized, for matrices inside the model, at AdamW's learning rate; AdamW for the rest.

        M = mu M + (1 - mu) G
        X = mu M + (1 - mu) G with `nesterov`, else M
        X = X / |X|, then five times X = a X + (b X X^T + c (X X^T)^2) X,  a, b, c = 3.4445, -4.7750, 2.0315
        W = (1 - eta lambda) W - eta 0.2 sqrt(max(m, n)) X

    W, G, M and X are m x n, turned so that m <= n for the five Newton-Schulz steps; |X| is the Frobenius norm, at least 1e-7,
    mu is `momentum`. Each expert of a stack, and each factor of the LoRA of one, is a matrix of its own. Embeddings, head, norms,
    biases and single rows or columns get AdamW at the same eta, and so do kernels and the angles of OFT, with `beta1`, `beta2`
    and `epsilon`.

    State: 4 m n bytes for a matrix m x n; 8 a number of everything else.

    Code: ours, and torch's fused AdamW for the rest: torch's Muon takes matrices alone and always computes in bf16, which a
    processor may have to emulate. Here that is so on CUDA only.

    Differs: M is a mean, where the paper has a sum; X is the same. An update is to be as long as AdamW's, 0.2 a number, and
    is that times the root mean square of the singular values that five steps leave. The coefficients are chosen to be steep
    at zero and end between 0.68 and 1.135 rather than at 1, so narrow matrices stay below 0.2; the reference does the same.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.
    """

    target: ClassVar[str] = "gym_optim.optimizers.muon:Muon"

    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of AdamW's running mean of the square."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of Muon's running mean of the gradient."""
    nesterov: bool = True
    """Whether the gradient is taken ahead of the momentum."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of one moment for each matrix and two for everything else."""
        return total_bytes(parameters, lambda group, name, shape: (4 if is_matrix(group, shape) else 8) * prod(shape))
