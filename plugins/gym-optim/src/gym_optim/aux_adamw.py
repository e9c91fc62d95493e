"""Optimizers with a rule for matrices inside the model, and AdamW for the rest: the auxiliary AdamW of Muon and its kin."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from gym_core import GymError
from gym_optim.adam import adamw_step
from gym_optim.base import BaseOptimizer, State, evaluate_closure, update_in_fp32
from gym_optim.parameter_roles import Names, is_matrix, is_named, module_names


class WithAuxAdamW(BaseOptimizer):
    """Base of optimizers with a rule of their own for some parameters, which leave the others to AdamW.

    A group that holds parameters of both sorts becomes two; `own` in a group says which it is.
    """

    embeddings_too: ClassVar[bool] = False
    """Whether the rule may have embeddings too, where nobody says which parameters they are."""

    def owns(self, group: dict[str, Any], name: str, parameter: Tensor) -> bool:
        """Whether the rule is for this parameter; its name is empty where none was given."""
        return is_matrix(group, tuple(parameter.shape))

    def init_state(self, parameter: Tensor) -> State:
        """Return the state in which the rule begins with a parameter."""
        return {}

    @abstractmethod
    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take one step of the rule, in place; the parameter and its gradient are fp32 or wider."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, those of the rule and the others apart.

        Raises GymError where vectors stand beside matrices and no role is told: then it is a whole model, whose embeddings
        and head are matrices too, and not for the rule.
        """
        held = param_group["params"]
        items = [held] if isinstance(held, Tensor) else list(held)
        weights = [item[1] if isinstance(item, tuple) else item for item in items]
        if "role" not in param_group and not self.embeddings_too and any(weight.dim() < 2 for weight in weights):
            name = type(self).__name__
            raise GymError(
                f"{name} is for matrices inside a model, and cannot tell them from embeddings, head and vectors here",
                key="params",
                fix=f"give the model, {name}(model, ...), or groups with roles: gym_optim.parameter_groups(model)",
            )
        parts: dict[bool, list[Any]] = {True: [], False: []}
        for item, weight in zip(items, weights, strict=True):
            name = item[0] if isinstance(item, tuple) else ""
            parts[self.owns({**self.defaults, **param_group}, name, weight)].append(item)
        # AdamW does the same however the factors of experts lie.
        flat = {key: value for key, value in param_group.items() if key != "experts"}
        for own, part in parts.items():
            if part:
                super().add_param_group({**(param_group if own else flat), "params": part, "own": own})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            ready = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["own"]:
                for parameter in ready:
                    state = self.state[parameter]
                    if not state:
                        state |= self.init_state(parameter)
                    update_in_fp32(self.update, parameter, state, group)
            else:
                adamw_step(ready, self.state, group)
        return loss


def check_modules(optimizer: WithAuxAdamW, modules: Names) -> None:
    """Raise GymError for one of these modules of which no parameter is the rule's."""
    held = [
        name
        for group in optimizer.param_groups
        for name, weight in zip(group.get("param_names", ()), group["params"], strict=False)
        if is_matrix(group, tuple(weight.shape))
    ]
    for module in module_names(modules) - {"all"}:
        if not any(is_named(name, module) for name in held):
            there = sorted({name.removesuffix(".weight").rpartition(".")[2] for name in held})
            raise GymError(
                f"no matrix inside the model has `{module}` in its path",
                key="optimizer.target_modules",
                fix=f"there are: {', '.join(there)}" if there else "give parameters with names",
            )
