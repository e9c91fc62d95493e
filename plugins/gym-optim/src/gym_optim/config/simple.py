"""Optimizers that keep one moment or none, as a recipe sees them."""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat

from gym_core import Flat
from gym_optim.config.base import AdamOptions, Alone, Beta1, Decay, Groups, TorchOptimizer, each
from gym_optim.roles import is_matrix


class SGD(Alone):
    """Gradient descent, with momentum where it is asked for."""

    target: ClassVar[str] = "gym_optim.torch_own:sgd"
    numberwise: ClassVar[bool] = True

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the old step that is kept."""
    nesterov: bool = False
    """Whether the gradient is taken ahead of the momentum."""
    weight_decay: Decay = 0.0
    """Share of each matrix added to its gradient."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of the momentum, where there is one."""
        return each(parameters, lambda group, name, shape: 4 * prod(shape)) if self.momentum else 0


class Lion(Alone):
    """The sign of an interpolated momentum: half the state of AdamW, and about a tenth of its learning rate."""

    target: ClassVar[str] = "gym_optim.lion:Lion"
    numberwise: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:2302.06675"

    beta1: Beta1 = 0.9
    """Share of the momentum in the direction."""
    beta2: Annotated[float, Field(ge=0, lt=1), Flat("adam_beta2", default=0.999)] = 0.99
    """Decay of the momentum."""
    weight_decay: Decay = 0.0
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of the momentum."""
        return each(parameters, lambda group, name, shape: 4 * prod(shape))


class _Factored(TorchOptimizer):
    """The options of Adafactor."""

    decay: PositiveFloat = 0.8
    """At step t the running mean of squares takes t ** -decay of the new one."""
    clip: PositiveFloat = 1.0
    """Largest root mean square of an update, before the learning rate."""
    epsilon: PositiveFloat = 1e-30
    """Added to squared gradients."""
    floor: PositiveFloat = 1e-3
    """Least root mean square of a weight, where the step grows with it."""
    weight_decay: Decay = 0.0
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return four bytes for each row and column of a matrix, and each number of a vector."""
        return each(
            parameters,
            lambda group, name, shape: (
                4 * prod(shape[:-2]) * (shape[-2] + shape[-1]) if len(shape) > 1 else 4 * prod(shape)
            ),
        )


class Adafactor(_Factored, Alone):
    """The second moment of a matrix as the means of its rows and columns, and no first one."""

    target: ClassVar[str] = "gym_optim.adafactor:Adafactor"
    paper: ClassVar[str] = "arXiv:1804.04235"

    relative: bool = False
    """Whether the learning rate is times the root mean square of each weight."""


class AdaLomo(_Factored):
    """Adafactor with steps relative to the weights, in the backward pass: one gradient at a time, and hardly a state."""

    target: ClassVar[str] = "gym_optim.in_backward:adalomo"
    paper: ClassVar[str] = "arXiv:2310.10195"

    def held_gradients(self, parameters: Groups) -> int | None:
        """None stays."""
        return 0


class LOMO(TorchOptimizer):
    """Gradient descent in the backward pass: one gradient at a time, and no state."""

    target: ClassVar[str] = "gym_optim.in_backward:lomo"
    paper: ClassVar[str] = "arXiv:2306.09782"

    weight_decay: Decay = 0.0
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""

    def declared_bytes(self, parameters: Groups) -> int:
        """There is none."""
        return 0

    def held_gradients(self, parameters: Groups) -> int | None:
        """None stays."""
        return 0


class Muon(AdamOptions, Alone):
    """Momentum, orthogonalized, for matrices inside the model, at AdamW's learning rate; AdamW for the rest."""

    target: ClassVar[str] = "gym_optim.muon:Muon"
    paper: ClassVar[str] = "arXiv:2502.16982"

    beta2: Annotated[float, Field(ge=0, lt=1), Flat("adam_beta2", default=0.999)] = 0.95
    """Decay of AdamW's running mean of the square."""
    weight_decay: Annotated[float, Field(ge=0), Flat("weight_decay", default=0.0)] = 0.1
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of Muon's running mean of the gradient."""
    nesterov: bool = True
    """Whether the gradient is taken ahead of the momentum."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of one moment for each matrix and two for everything else."""
        return each(parameters, lambda group, name, shape: (4 if is_matrix(group, shape) else 8) * prod(shape))
