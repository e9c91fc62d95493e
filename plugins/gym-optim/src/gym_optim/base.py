"""What the optimizers here are made of: a rule for some parameters beside torch's AdamW for the others.

Options are those of the config class, by the names that torch gives them, and checked by it. Arithmetic and state are fp32 at
least: parameters of bf16 or fp16 move as fp32 ones would, and are rounded once, at the end of a step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, MutableMapping
from math import inf
from typing import Any, ClassVar

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim.adamw import adamw

from gym_core import GymError
from gym_optim.config.base import TorchOptimizer
from gym_optim.param_groups import parameter_groups
from gym_optim.parameter_roles import Names, is_matrix, is_named, parts

Parameters = (
    Any  #: a model; or tensors, pairs of name and tensor, or groups of them, as every torch optimizer takes them
)
State = dict[str, Any]


class Checked(torch.optim.Optimizer):
    """Base of all: takes a model too, refuses options out of range, and loads a state as it was."""

    options: ClassVar[type[TorchOptimizer]]
    """The config class, which says what each option may be."""
    whole: ClassVar[bool] = True
    """Whether the rule needs all of a parameter, and cannot work on shards."""

    def __init__(self, params: Parameters, defaults: dict[str, Any]) -> None:
        """Hold parameters. Raises ValueError for an option out of range."""
        super().__init__(told(params), defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters.

        Raises ValueError for an option out of range, and GymError for shards where the rule needs all of a parameter.
        """
        check(self.options, {**self.defaults, **param_group})
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"] if self.whole else ():
            refuse_shards(self, parameter)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; its tensors keep their dtypes, which torch would make those of their parameters."""
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        held = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, held, strict=True):
            for key, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor):
                    self.state[parameter][key] = value.to(parameter.device)


def per_parameter(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the state of an optimizer is each parameter's own; others than those here are taken to be such."""
    return not isinstance(optimizer, Checked) or optimizer.options.per_parameter


class EachParameter(Checked):
    """Base of optimizers with one rule, which looks at one parameter at a time."""

    @abstractmethod
    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take one step of the rule, in place; the parameter and its gradient are fp32 or wider."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = value_of(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    in_full(self.update, parameter, self.state[parameter], group)
        return loss


class Mixed(Checked):
    """Base of optimizers with a rule of their own for some parameters, which leave the others to AdamW.

    A group that holds parameters of both sorts becomes two; `own` in a group says which it is.
    """

    tables_too: ClassVar[bool] = False
    """Whether the rule may have embeddings too, where nobody says which parameters they are."""

    def owns(self, group: dict[str, Any], name: str, parameter: Tensor) -> bool:
        """Whether the rule is for this parameter; its name is empty where none was given."""
        return is_matrix(group, tuple(parameter.shape))

    def begin(self, parameter: Tensor) -> State:
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
        if "role" not in param_group and not self.tables_too and any(weight.dim() < 2 for weight in weights):
            name = type(self).__name__
            raise GymError(
                f"{name} is for matrices inside a model, and cannot tell them from embeddings, head and vectors here",
                key="params",
                fix=f"give the model, {name}(model, ...), or groups with roles: gym_optim.parameter_groups(model)",
            )
        parts: dict[bool, list[Any]] = {True: [], False: []}
        for item, weight in zip(items, weights, strict=True):
            refuse_shards(self, weight)
            name = item[0] if isinstance(item, tuple) else ""
            parts[self.owns({**self.defaults, **param_group}, name, weight)].append(item)
        for own, part in parts.items():
            if part:
                super().add_param_group({**param_group, "params": part, "own": own})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = value_of(closure)
        for group in self.param_groups:
            ready = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["own"]:
                for parameter in ready:
                    state = self.state[parameter]
                    if not state:
                        state |= self.begin(parameter)
                    in_full(self.update, parameter, state, group)
            else:
                adamw_step(ready, self.state, group)
        return loss


def told(params: Parameters) -> Any:
    """Return parameters as torch takes them: a model becomes groups by role."""
    return parameter_groups(params) if isinstance(params, nn.Module) else params


def named_groups(params: Parameters) -> list[dict[str, Any]]:
    """Return groups of named parameters; raises GymError where names are missing."""
    given = list(told(params))
    groups = [{**group, "params": list(group["params"])} for group in given] if isinstance(given[0], dict) else []
    groups = groups or [{"params": given}]
    if not all(isinstance(item, tuple) for group in groups for item in group["params"]):
        raise GymError(
            "LoRA pairs are told by the names of parameters", key="params", fix="give the model, or (name, parameter)"
        )
    return groups


def check(options: type[TorchOptimizer], group: dict[str, Any]) -> None:
    """Raise ValueError where the learning rate or an option of a group is out of the range that its config class gives."""
    if not 0 <= group["lr"] < inf:
        raise ValueError(f"Invalid learning rate: {group['lr']}")
    try:
        options.from_keywords(group)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"Invalid {where} of {options.__name__}, {first['input']}: {first['msg']}") from None


def in_full(
    update: Callable[[Tensor, Tensor, State, dict[str, Any]], None],
    parameter: Tensor,
    state: State,
    group: dict[str, Any],
) -> None:
    """Take a step of a rule in fp32 or wider, and round the parameter once where it has fewer bits."""
    assert parameter.grad is not None
    exact = full(parameter.dtype)
    wide = parameter.to(exact)  # itself, where nothing is to be done
    update(wide, parameter.grad.to(exact), state, group)
    if wide is not parameter:
        parameter.copy_(wide)


def full(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which parameters of a dtype are updated."""
    return torch.promote_types(dtype, torch.float32)


def value_of(closure: Callable[[], Any] | None) -> Any:
    """Call the closure that torch lets a loop give to `step`, with gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def adamw_step(parameters: Iterable[Tensor], states: MutableMapping[Any, State], group: dict[str, Any]) -> None:
    """Take a step of torch's fused AdamW, with the state that `torch.optim.AdamW` has, in fp32 or wider."""
    exact = []
    for parameter in parameters:
        state, dtype = states[parameter], full(parameter.dtype)
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter, dtype=dtype)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=dtype)
        if parameter.dtype == dtype:
            assert parameter.grad is not None
            exact.append((parameter, parameter.grad, state))
        else:  # one at a time, so that no more than one is held in fp32
            in_full(
                lambda weight, gradient, state, group: _fused([(weight, gradient, state)], group),
                parameter,
                state,
                group,
            )
    if exact:
        _fused(exact, group)


def _fused(ready: list[tuple[Tensor, Tensor, State]], group: dict[str, Any]) -> None:
    beta1, beta2 = group["betas"]
    adamw(
        [weight for weight, _, _ in ready],
        [gradient for _, gradient, _ in ready],
        [state["exp_avg"] for _, _, state in ready],
        [state["exp_avg_sq"] for _, _, state in ready],
        [],
        [state["step"] for _, _, state in ready],
        fused=True,
        amsgrad=False,
        maximize=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
    )


def adam_direction(gradient: Tensor, state: State, group: dict[str, Any]) -> Tensor:
    """Return Adam's direction for a gradient of any shape, and keep its moments in `state`."""
    if "step" not in state:
        state |= {"step": 0, "exp_avg": torch.zeros_like(gradient), "exp_avg_sq": torch.zeros_like(gradient)}
    state["step"] += 1
    beta1, beta2 = group["betas"]
    state["exp_avg"].lerp_(gradient, 1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    spread = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
    return state["exp_avg"] / spread.mul_(1 - beta1 ** state["step"])


def refuse_unnamed(optimizer: Mixed, modules: Names) -> None:
    """Raise GymError for one of these modules of which no parameter is the rule's."""
    held = [
        name
        for group in optimizer.param_groups
        for name, weight in zip(group.get("param_names", ()), group["params"], strict=False)
        if is_matrix(group, tuple(weight.shape))
    ]
    for module in parts(modules) - {"all"}:
        if not any(is_named(name, module) for name in held):
            there = sorted({name.removesuffix(".weight").rpartition(".")[2] for name in held})
            raise GymError(
                f"no matrix inside the model has `{module}` in its path",
                key="optimizer.modules",
                fix=f"there are: {', '.join(there)}" if there else "give parameters with names",
            )


def refuse_shards(optimizer: torch.optim.Optimizer, parameter: Tensor) -> None:
    """Raise GymError for a parameter of which each process has a part."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        from torch.distributed.tensor import DTensor

        if isinstance(parameter, DTensor):
            raise GymError(
                f"{type(optimizer).__name__} needs whole parameters, and fsdp cuts them up",
                key="optimizer",
                fix="set distributed: ddp, or an optimizer that works elementwise: adamw, lion, sgd",
            )
