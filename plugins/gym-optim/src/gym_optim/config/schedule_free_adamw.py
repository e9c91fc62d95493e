"""The options of schedule-free AdamW."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gym_optim.config.base import AdamOptions, AfterBackward, Beta1, Elementwise


class ScheduleFreeAdamW(AdamOptions, AfterBackward, Elementwise):
    """AdamW that averages its iterates in place of a falling rate; set `scheduler: constant`, with warm-up.

        v = beta2 v + (1 - beta2) G^2
        d = G / (sqrt(v / (1 - beta2^t)) + epsilon) + lambda y
        z = z - eta d
        x = (1 - c) x + c z,  c = w_t / (w_1 + ... + w_t),  w_t = t^power max(eta_1, ..., eta_t)^2
        y = (1 - beta1) z + beta1 x

    The parameters hold y while training, and G is the gradient there; z are the iterates, x is their average, the weights to
    use; x, y and z begin at the parameter's value, v at zero. x follows from y and z and is not stored, so `beta1` must not
    be zero. All parameters get this; norms and biases do not decay.

    State: 8 m n bytes for a matrix m x n, z and v; 8 a number of everything else.

    Code: ours, from the paper (algorithm 1). The reference is switched between training and evaluation by hand, and what a
    checkpoint holds depends on it.

    Differs: checkpoints, that of `keep_best` too, hold y, so that a resumed run is exact; evaluation and the final model use
    x. The weight of a step takes the largest rate so far, as the reference does, where the paper has that of the step.

    Not with: a rate that falls, as of the default `scheduler: linear`: the run says so and goes on. Steps are counted for all
    parameters at once, so there is no `in_backward`. `ddp` and `fsdp` are fine.
    """

    target: ClassVar[str] = "gym_optim.optimizers.schedule_free_adamw:ScheduleFreeAdamW"

    beta1: Annotated[Beta1, Field(gt=0)] = 0.9
    """Share of the average, as against the newest iterate, at which gradients are taken."""
    power: Annotated[float, Field(ge=0)] = 0.0
    """In the average, step t counts t ** power times the square of the largest learning rate so far."""

    def averages(self) -> bool:
        """The average stands in for a falling learning rate."""
        return True

    def evaluation_weights(self, optimizer: Any) -> AbstractContextManager[None]:
        """Have the parameters hold the average; takes the memory of one more copy of them."""
        averaged: AbstractContextManager[None] = optimizer.averaged()
        return averaged
