"""The optimizer inside the backward pass: a parameter is updated when its gradient is there, and the gradient goes.

Then no more than one gradient is held at a time. What needs all of them at once, a sum over several backward passes,
over processes, or a norm over all, would silently be something else; a second pass before `step` is refused here, and the
trainer refuses the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gym_core import GymError
from gym_optim.base import call_when_ready, evaluate_closure, per_parameter


class InBackward(torch.optim.Optimizer):
    """Has an optimizer update each parameter during the backward pass; for those whose state is each parameter's own.

    Learning rates are set before the backward pass. `step` ends a step, and updates what still has a gradient.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over the parameters, groups and state of an optimizer, which is used through this from now on.

        Raises GymError for one that looks at several parameters, or counts steps for all of them.
        """
        if not per_parameter(optimizer):
            raise GymError(
                f"{type(optimizer).__name__} looks at more than one parameter at a time",
                key="optimizer",
                fix="use it as it is, or an optimizer whose state is each parameter's own: AdamW, GaLore, Adafactor",
            )
        self.optimizer = optimizer
        self._updated: set[Tensor] = set()
        self._group_of: dict[Tensor, int] = {}
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.state = optimizer.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as the optimizer adds them that is used. Raises what that raises."""
        if any(param_group is group for group in self.optimizer.param_groups):  # one that it came with
            super().add_param_group(param_group)
        else:
            self.optimizer.param_groups = self.param_groups
            self.optimizer.add_param_group(param_group)
        for number, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if parameter not in self._group_of:
                    self._group_of[parameter] = number
                    call_when_ready(parameter, self._gradient_ready)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """End a step."""
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter)
        self._updated.clear()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state as the optimizer does that is used."""
        self.optimizer.param_groups = self.param_groups
        self.optimizer.load_state_dict(state_dict)
        self.param_groups[:], self.state = self.optimizer.param_groups, self.optimizer.state

    def _gradient_ready(self, parameter: Tensor) -> None:
        if parameter in self._updated:
            raise GymError(
                "an optimizer in the backward pass cannot wait for a second backward pass",
                key="optimizer",
                fix="set train.accumulate: 1, or optimizer.in_backward: false",
            )
        self._update(parameter)
        self._updated.add(parameter)

    def _update(self, parameter: Tensor) -> None:
        self.optimizer.state = self.state
        self.optimizer.param_groups = [{**self.param_groups[self._group_of[parameter]], "params": [parameter]}]
        self.optimizer.step()
        parameter.grad = None
