"""The options of Adafactor, and those that AdaLomo shares."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat

from gym_optim.config.base import Decay, Groups, PerParameter, WholeParameters, total_bytes


class FactoredOptions(WholeParameters):
    """The options of Adafactor."""

    torch_names: ClassVar[Mapping[str, tuple[str, int | None]]] = {
        "epsilon1": ("eps", 0),
        "epsilon2": ("eps", 1),
        "clip_threshold": ("d", None),
    }

    beta2_decay: Annotated[float, Field(lt=0)] = -0.8
    """At step t the running mean of squares takes t ** beta2_decay of the new one."""
    clip_threshold: PositiveFloat = 1.0
    """Largest root mean square of an update, before the learning rate."""
    epsilon1: PositiveFloat = 1e-30
    """Added to squared gradients."""
    epsilon2: PositiveFloat = 1e-3
    """Least root mean square of a weight, where the step grows with it."""
    weight_decay: Decay = 0.0
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return four bytes for each row and column of a matrix, of each in a stack, and for each number of a vector."""
        return total_bytes(
            parameters,
            lambda group, name, shape: (
                4 * prod(shape[:-2]) * (shape[-2] + shape[-1]) if len(shape) > 1 else 4 * prod(shape)
            ),
        )


class Adafactor(FactoredOptions, PerParameter):
    """The second moment of a matrix as the means of its rows and columns, and no first one.

        b = t^beta2_decay
        R = (1 - b) R + b mean over each row of (G^2 + epsilon1),  C = the same over each column
        U = G / sqrt(R C^T / mean(R))
        U = U / max(1, rms(U) / clip_threshold)
        W = (1 - eta lambda) W - eta max(epsilon2, rms(W)) U with `scale_parameter`, else (1 - eta lambda) W - eta U

    W, G and U are m x n, R has m numbers and C n; rms is the root mean square over a parameter. A vector has a second moment
    V for each number, and U = G / sqrt(V); each expert of a stack is a matrix of its own. All parameters get this; norms and
    biases do not decay.

    State: 4 (m + n) bytes for a matrix m x n; 4 a number of a vector.

    Code: ours, from the paper (algorithm 4); a learning rate of torch's means something else, as said below.

    Differs: the paper, and torch's with it, always takes the size of the weights as a factor and caps the rate, at 1/sqrt(t)
    in torch. Here the first is `scale_parameter` and the second is left to the schedule; with `scale_parameter: true` and
    below that cap both agree.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.
    """

    target: ClassVar[str] = "gym_optim.optimizers.adafactor:Adafactor"

    scale_parameter: bool = False
    """Whether the learning rate is times the root mean square of each weight."""
