"""The options of Lion."""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar

from pydantic import Field

from gym_optim.config.base import Beta1, Decay, Elementwise, Groups, PerParameter, total_bytes


class Lion(PerParameter, Elementwise):
    """The sign of an interpolated momentum: half the state of AdamW, and about a tenth of its learning rate.

        d = sign(beta1 m + (1 - beta1) G)
        W = (1 - eta lambda) W - eta d
        m = beta2 m + (1 - beta2) G

    W is a parameter of any shape, G its gradient, m has its shape and begins at zero; every number moves by eta. All
    parameters get this; norms and biases do not decay.

    State: 4 m n bytes for a matrix m x n, the momentum in fp32; 4 a number of everything else.

    Code: ours, from the paper (algorithm 2): the reference is a single release without upkeep.

    Not with: `in_backward: true` refuses `accumulate` above 1, `max_grad_norm` above 0, a second process and AdaLoRA; without
    it, `ddp` and `fsdp` are fine.
    """

    target: ClassVar[str] = "gym_optim.optimizers.lion:Lion"

    beta1: Beta1 = 0.9
    """Share of the momentum in the direction (the first of `betas` in other software)."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of the momentum (the second of `betas` in other software)."""
    weight_decay: Decay = 0.0
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of the momentum."""
        return total_bytes(parameters, lambda group, name, shape: 4 * prod(shape))
