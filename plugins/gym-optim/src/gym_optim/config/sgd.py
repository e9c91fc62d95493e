"""The options of SGD."""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from gym_optim.config.base import Decay, Elementwise, Groups, PerParameter, total_bytes


class SGD(PerParameter, Elementwise):
    """Gradient descent, with momentum where it is asked for.

        g = G + lambda W
        b = momentum b + g
        W = W - eta (g + momentum b) with `nesterov`, else W - eta b

    W is a parameter of any shape, G its gradient, b has its shape and begins at zero; without momentum b is g. All parameters
    get this; norms and biases do not decay. Decay goes through the momentum, unlike that of AdamW.

    State: none, or 4 m n bytes for a matrix m x n with momentum.

    Code: ours: torch's keeps the momentum in the dtype of the parameter.

    Not with: `nesterov` without momentum. `in_backward: true` refuses `accumulate` above 1,
    `max_grad_norm` above 0, a second process and AdaLoRA; without it, `ddp` and `fsdp` are fine.
    """

    target: ClassVar[str] = "gym_optim.optimizers.sgd:SGD"

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the old step that is kept."""
    nesterov: bool = False
    """Whether the gradient is taken ahead of the momentum."""
    weight_decay: Decay = 0.0
    """Share of each matrix added to its gradient."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of the momentum, where there is one."""
        return total_bytes(parameters, lambda group, name, shape: 4 * prod(shape)) if self.momentum else 0

    @field_validator("nesterov")
    @classmethod
    def _has_momentum(cls, nesterov: bool, found: ValidationInfo) -> bool:
        if nesterov and not found.data.get("momentum"):
            raise ValueError("there is no momentum to look ahead of; set momentum: 0.9")
        return nesterov
