"""The options of AdaLomo."""

from __future__ import annotations

from typing import ClassVar

from gym_optim.config.adafactor import FactoredOptions
from gym_optim.config.base import AlwaysInBackward


class AdaLomo(FactoredOptions, AlwaysInBackward):
    """Adafactor with steps relative to the weights, in the backward pass: one gradient at a time, and hardly a state.

        in the backward pass, as soon as G is there:
        b = t^beta2_decay
        R = (1 - b) R + b mean over each row of (G^2 + epsilon1),  C = the same over each column
        U = G / sqrt(R C^T / mean(R))
        U = U / max(1, rms(U) / clip_threshold)
        W = (1 - eta lambda) W - eta max(epsilon2, rms(W)) U,  and G goes

    W, G and U are m x n, R has m numbers and C n; rms is the root mean square over a parameter. A vector has a second moment
    V for each number, and U = G / sqrt(V). All parameters get this; norms and biases do not decay.

    State: 4 (m + n) bytes for a matrix m x n, 4 a number of a vector; and one gradient at a time.

    Code: ours, from the paper: the reference is a single release without upkeep.

    Differs: decay is times the learning rate alone, as in `adafactor`, where the reference takes the size of the weight as a
    factor too. There is no second backward pass for the norm of the gradient, and no scale of the loss, which fp16 would
    need. R and C are in checkpoints.

    Not with: `accumulate` above 1, `max_grad_norm` above 0 (the default is 1), a second process and AdaLoRA, all refused by
    name.
    """

    target: ClassVar[str] = "gym_optim.optimizers.adalomo:adalomo"
