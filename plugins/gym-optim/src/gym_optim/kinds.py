"""The kinds `optimizers` and `schedulers`: what a training loop asks of each. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from gym_core import Component, GymError
from gym_core.sections import SECTION_OF
from gym_optim.promises import Held


class Optimizer(Held):
    """Updates parameters. Section `optimizer`. `build(parameters=groups, learning_rate=float)` returns an optimizer.

    A group is `{"params": [(name, parameter), ...], "role": str, ...}`; what the roles are: `gym_optim.param_groups`.
    """

    kind: ClassVar[str] = "optimizers"
    general: ClassVar[bool] = True
    """Whether it works on any parameters, and not on those of one adapter or of one kind of device alone."""

    def elementwise(self) -> bool:
        """Whether each number moves by its own gradient alone, so that parameters may be cut into shards."""
        raise undeclared(self, "elementwise(self) -> bool: return ...")

    def keeps_gradients(self) -> bool:
        """Whether every gradient is there, whole, until the end of `step`; not so in-backward or block-wise."""
        raise undeclared(self, "keeps_gradients(self) -> bool: return ...")

    def updates_in_backward(self) -> bool:
        """Whether updates happen during backward: then no accumulation, no clipping and one process."""
        raise undeclared(self, "updates_in_backward(self) -> bool: return ...")

    def gradient_bytes(self, parameters: Sequence[Mapping[str, Any]]) -> int:
        """Return the bytes of the gradients that `step` finds, where that is not all of them; groups as below."""
        if self.updates_in_backward():
            return 0
        raise undeclared(self, "gradient_bytes(self, parameters) -> int: return ...")

    def averages(self) -> bool:
        """Whether the weights to evaluate and save differ from those that train, as in schedule-free."""
        return False

    def evaluation_weights(self, optimizer: Any) -> AbstractContextManager[None]:
        """Have the parameters of what `build` returned hold the weights to use, and then again what they held, bit for bit."""
        if self.averages():
            raise undeclared(self, "evaluation_weights(self, optimizer) -> AbstractContextManager[None]: return ...")
        return nullcontext()

    def declared_bytes(self, parameters: Sequence[Mapping[str, Any]]) -> int:
        """Return the bytes of state after a step for groups with shapes of fp32 parameters in their place; no scalars."""
        raise TypeError(f"{type(self).__name__} does not declare the size of its state")


class Scheduler(Held):
    """Shapes the learning rate. Section `scheduler`. `build(total=steps, warmup=steps)` returns `factor(step) -> float`."""

    kind: ClassVar[str] = "schedulers"
    ends_at: ClassVar[float | None] = None
    """Factor after the last step, where it does not depend on the options."""


def undeclared(component: Component, signature: str) -> GymError:
    """Return the error of a component that does not say what its kind asks."""
    name, method = type(component).__name__, signature.partition("(")[0]
    return GymError(
        f"{name} does not declare `{method}`",
        where=f"{type(component).__module__}.{name}",
        key=SECTION_OF.get(component.kind, component.kind),
        fix=f"write `def {signature}` in {name}; docs/kinds.md says what it returns",
    )
