"""The options of LISA."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from gym_optim.config.base import Groups
from gym_optim.config.block_coordinate import BlockCoordinateOptions, block_bytes
from gym_optim.parameter_roles import block_of


class LISA(BlockCoordinateOptions):
    """AdamW on what stands outside the layers and on a few layers, drawn anew every so many steps.

        A = what stands outside the layers, and `activated_layers` of them, drawn for each period of `interval_steps` steps
        W in A:  m = beta1 m + (1 - beta1) G,  v = beta2 v + (1 - beta2) G^2
                 W = (1 - eta lambda) W - eta (m / (1 - beta1^k)) / (sqrt(v / (1 - beta2^k)) + epsilon)
        other W: stays as it is, its gradient goes at once, m and v are dropped

    A layer is told by the path of its parameters up to the first number; embeddings, head and the last norm stand outside. k
    counts the steps since W came into A, m and v begin at zero there. Layers are drawn without repetition from the seed and
    the number of the period, so a resumed run goes on with the same. Norms and biases do not decay.

    State: 8 bytes a number of what stands outside and of the layers that work: 8 m n for a matrix m x n of theirs, none for
    others.

    Code: ours, from the paper: the reference is part of a framework for training.

    Differs: the backward pass is whole, and a gradient that is not used goes when it is there: the memory of gradients is
    saved, their time is not. A layer that rests forgets its moments.

    Not with: several processes, be it `ddp` or `fsdp`, whose gradients would be exchanged before it is known which are
    needed; AdaLoRA, which looks at the gradients of all layers; parameters without names.
    """

    target: ClassVar[str] = "gym_optim.optimizers.lisa:LISA"

    activated_layers: PositiveInt = 2
    """How many layers work at a time."""
    interval_steps: PositiveInt = 20
    """Steps between two draws."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the draws."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments for what stands outside and for as many of the largest layers as work."""
        sizes = block_bytes(parameters, lambda group, name: block_of(name))
        return sizes.pop("", 0) + sum(sorted(sizes.values())[-self.activated_layers :])
