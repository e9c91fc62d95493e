"""The options of LOMO."""

from __future__ import annotations

from typing import ClassVar

from gym_optim.config.base import AlwaysInBackward, Decay, Elementwise, Groups


class LOMO(AlwaysInBackward, Elementwise):
    """Gradient descent in the backward pass: one gradient at a time, and no state.

        in the backward pass, as soon as G is there:
        W = (1 - eta lambda) W - eta G,  and G goes

    W is a parameter of any shape, G its gradient. All parameters get this; norms and biases do not decay.

    State: none; and one gradient at a time.

    Code: ours, as `sgd`, called for one parameter at a time. The reference is a single release without upkeep.

    Differs: there is no second backward pass for the norm of the gradient, no clipping by value, and no scale of the loss,
    which fp16 would need.

    Not with: `accumulate` above 1, `max_grad_norm` above 0 (the default is 1), a second process and AdaLoRA, all refused by
    name.
    """

    target: ClassVar[str] = "gym_optim.optimizers.lomo:lomo"

    weight_decay: Decay = 0.0
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""

    def declared_bytes(self, parameters: Groups) -> int:
        """There is none."""
        return 0
