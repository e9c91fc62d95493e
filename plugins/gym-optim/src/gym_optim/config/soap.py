"""The options of SOAP."""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from gym_optim.config.base import AdamOptions, Beta1, Beta2, Decay, Groups, PerParameter, WholeParameters, total_bytes
from gym_optim.parameter_roles import is_matrix


class SOAP(AdamOptions, PerParameter, WholeParameters):
    """Adam in the eigenbasis of Shampoo's preconditioner, for matrices inside the model.

        M = beta1 M + (1 - beta1) G
        V = beta2 V + (1 - beta2) (Q_L^T G Q_R)^2
        N = (Q_L^T M Q_R / (1 - beta1^t)) / (sqrt(V / (1 - beta2^t)) + epsilon)
        W = (1 - eta lambda) W - eta Q_L N Q_R^T
        L = b L + (1 - b) G G^T,  R = b R + (1 - b) G^T G
        every `precondition_frequency` steps: Q_L = QR(L Q_L), Q_R = QR(R Q_R)

    W, G, M and V are m x n, L and Q_L m x m, R and Q_R n x n; b is `shampoo_beta`. The first gradient is only looked at: it
    begins L and R, whose eigenvectors Q_L and Q_R are; t counts from the second. Before QR, columns are sorted by their
    eigenvalues and V with them. A side longer than `max_precond_dim` has Q = 1. Each expert of a stack is a matrix of its
    own. Embeddings, head, norms, biases and single rows or columns get AdamW with the same options.

    State: 8 m n + 8 (m^2 + n^2) bytes for a matrix m x n, without the square of a side longer than `max_precond_dim`; 8 a
    number of everything else.

    Code: ours, from the paper: the reference is a single release without upkeep.

    Differs: epsilon is added after the bias of V is corrected and decay comes before the step, as in AdamW; in the reference
    it is the other way round.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.
    """

    target: ClassVar[str] = "gym_optim.optimizers.soap:SOAP"

    beta1: Beta1 = 0.95
    """Decay of the running mean of the gradient (the first of `betas` in other software)."""
    beta2: Beta2 = 0.95
    """Decay of the running mean of its square, in the eigenbasis (the second of `betas` in other software)."""
    weight_decay: Decay = 0.01
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""
    shampoo_beta: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the running means of the products of the gradient with itself."""
    precondition_frequency: PositiveInt = 10
    """Steps between two refreshments of the eigenbasis."""
    max_precond_dim: PositiveInt = 10_000
    """Sides of a matrix that are longer are left as they are."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments, and of a mean and a basis for each side of a matrix."""
        return total_bytes(
            parameters,
            lambda group, name, shape: (
                8 * prod(shape)
                + is_matrix(group, shape)
                * prod(shape[:-2])
                * sum(8 * side**2 for side in shape[-2:] if side <= self.max_precond_dim)
            ),
        )
