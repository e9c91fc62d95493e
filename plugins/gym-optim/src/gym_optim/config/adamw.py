"""The options of AdamW."""

from __future__ import annotations

from typing import ClassVar

from gym_optim.config.base import AdamOptions, Elementwise, PerParameter


class AdamW(AdamOptions, PerParameter, Elementwise):
    """Adam with decoupled weight decay, fused.

        m = beta1 m + (1 - beta1) G
        v = beta2 v + (1 - beta2) G^2
        W = (1 - eta lambda) W - eta (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

    W is a parameter of any shape, G its gradient; m and v have its shape and begin at zero, t counts steps from 1, eta is the
    learning rate, lambda `weight_decay`, and everything is number by number. All parameters get this; norms and biases do not
    decay.

    State: 8 m n bytes for a matrix m x n, the two moments in fp32; 8 a number of everything else.

    Code: torch's, all parameters in one kernel; it is right and kept. Ours around it keeps m and v in fp32 where parameters
    are not.

    Differs: decay is times the learning rate, as in torch. In the paper (algorithm 2) it is times the schedule alone, so a
    lambda from there is to be divided by the peak learning rate.

    Not with: `in_backward: true` refuses `accumulate` above 1, `max_grad_norm` above 0, a second process and AdaLoRA; without
    it, `ddp` and `fsdp` are fine.
    """

    target: ClassVar[str] = "gym_optim.optimizers.adamw:AdamW"
