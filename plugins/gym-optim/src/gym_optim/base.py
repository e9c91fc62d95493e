"""What the optimizers here are made of: a rule for some parameters beside torch's AdamW for the others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from gym_core import GymError
from gym_optim.roles import is_matrix

Parameters = Any  #: tensors, pairs of name and tensor, or groups of them, as every torch optimizer takes them
State = dict[str, Any]


class EachParameter(torch.optim.Optimizer):
    """Base of optimizers with one rule, which looks at one parameter at a time."""

    whole: ClassVar[bool] = True
    """Whether the rule needs all of a parameter, and cannot work on shards."""

    @abstractmethod
    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take one step of the rule, in place."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters. Raises GymError for shards where the rule needs all of a parameter."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"] if self.whole else ():
            refuse_shards(self, parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = value_of(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, self.state[parameter], group)
        return loss


class Mixed(torch.optim.Optimizer):
    """Base of optimizers with a rule of their own for some parameters, which leave the others to AdamW.

    A group that holds parameters of both sorts becomes two; `own` in a group says which it is.
    """

    def __init__(self, params: Parameters, defaults: dict[str, Any]) -> None:
        """Hold parameters; `defaults` has the options of AdamW beside those of the rule.

        Raises GymError for parameters that are cut into shards.
        """
        super().__init__(params, {**defaults, "fused": True})  # `fused`: torch then loads step counts onto the device

    def owns(self, group: dict[str, Any], name: str, parameter: Tensor) -> bool:
        """Whether the rule is for this parameter; its name is empty where none was given."""
        return is_matrix(group, tuple(parameter.shape))

    @abstractmethod
    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take one step of the rule, in place."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, those of the rule and the others apart."""
        held = param_group["params"]
        items = [held] if isinstance(held, Tensor) else list(held)
        parts: dict[bool, list[Any]] = {True: [], False: []}
        for item in items:
            name, parameter = item if isinstance(item, tuple) else ("", item)
            refuse_shards(self, parameter)
            parts[self.owns({**self.defaults, **param_group}, name, parameter)].append(item)
        for own, part in parts.items():
            if part:
                super().add_param_group({**param_group, "params": part, "own": own})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; codes stay bytes, which torch would make the dtype of their parameter."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            for key in state:
                if key.endswith("_codes"):
                    state[key] = state[key].to(torch.uint8)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = value_of(closure)
        for group in self.param_groups:
            ready = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["own"]:
                for parameter in ready:
                    self.update(parameter, parameter.grad, self.state[parameter], group)
            else:
                adamw_step(ready, self.state, group)
        return loss


def value_of(closure: Callable[[], Any] | None) -> Any:
    """Call the closure that torch lets a loop give to `step`, with gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def adamw_step(parameters: Sequence[Tensor], states: MutableMapping[Any, State], group: dict[str, Any]) -> None:
    """Take a step of torch's fused AdamW, with the state that `torch.optim.AdamW` has."""
    if not parameters:
        return
    for parameter in parameters:
        if not states[parameter]:
            states[parameter]["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            states[parameter]["exp_avg"] = torch.zeros_like(parameter)
            states[parameter]["exp_avg_sq"] = torch.zeros_like(parameter)
    adamw(
        list(parameters),
        [parameter.grad for parameter in parameters],
        [states[parameter]["exp_avg"] for parameter in parameters],
        [states[parameter]["exp_avg_sq"] for parameter in parameters],
        [],
        [states[parameter]["step"] for parameter in parameters],
        fused=True,
        amsgrad=False,
        maximize=False,
        beta1=group["beta1"],
        beta2=group["beta2"],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["epsilon"],
    )


def adam_direction(gradient: Tensor, state: State, group: dict[str, Any]) -> Tensor:
    """Return Adam's direction for a gradient of any shape, and keep its moments in `state`."""
    if "step" not in state:
        state |= {"step": 0, "exp_avg": torch.zeros_like(gradient), "exp_avg_sq": torch.zeros_like(gradient)}
    state["step"] += 1
    beta1, beta2 = group["beta1"], group["beta2"]
    state["exp_avg"].lerp_(gradient, 1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    spread = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["epsilon"])
    return state["exp_avg"] / spread.mul_(1 - beta1 ** state["step"])


def refuse_shards(optimizer: torch.optim.Optimizer, parameter: Tensor) -> None:
    """Raise GymError for a parameter of which each process has a part."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        from torch.distributed.tensor import DTensor

        if isinstance(parameter, DTensor):
            raise GymError(
                f"{type(optimizer).__name__} needs whole parameters, and fsdp cuts them up",
                key="optimizer",
                fix="set distributed: ddp, or an optimizer that works number by number: adamw, lion, sgd",
            )
