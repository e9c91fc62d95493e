"""What the optimizers here are made of. Options, defaults and ranges are those of the config class, by their names in torch.

Arithmetic and state are fp32 at least: parameters of bf16 or fp16 move as fp32 ones would, and are rounded once, at the end of a
step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, cleandoc, signature
from math import inf
from typing import Any, ClassVar, TypeVar
from weakref import WeakMethod

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from gym_core import GymError
from gym_optim.config.base import OptimizerConfig
from gym_optim.param_groups import parameter_groups
from gym_optim.parameter_roles import stacked

#: A model; or tensors, pairs of name and tensor, or groups of them, as every torch optimizer takes them.
Parameters = Any
State = dict[str, Any]
Maker = TypeVar("Maker", bound=Callable[..., torch.optim.Optimizer])


class BaseOptimizer(torch.optim.Optimizer):
    """Base of all: takes a model too, refuses options out of range, and loads a state as it was."""

    options: ClassVar[type[OptimizerConfig]]
    """The config class, which says what each option is, may be, and is by default."""
    default_lr: ClassVar[float] = 1e-3
    """Learning rate in a loop that gives none; a recipe has its own."""
    counters: ClassVar[Mapping[str, Any]] = {}
    """What a group of parameters counts beside its options, and where that begins."""

    def __init__(self, params: Parameters, lr: float | None = None, **options: Any) -> None:
        """Hold parameters; a group may override any option, such as `weight_decay`.

        Raises TypeError for an option that there is not, ValueError for one out of range, and GymError for parameters that the
        optimizer is not for.
        """
        rate = self.default_lr if lr is None else lr
        super().__init__(as_groups(params), {"lr": rate, **self.options.torch_options(options), **self.counters})

    def __init_subclass__(cls) -> None:
        """Show the options of the config class in the signature and in `help`."""
        super().__init_subclass__()
        if "options" in vars(cls) or "default_lr" in vars(cls):
            show_options(cls, cls.options, cls.default_lr)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters.

        Raises ValueError for an option out of range, and GymError for shards where the rule needs all of a parameter.
        """
        configured = checked_options(self.options, {**self.defaults, **param_group})
        super().add_param_group(param_group)
        if configured.elementwise():  # then it is the same however they lie
            self.param_groups[-1].pop("experts", None)
        for parameter in () if configured.elementwise() else self.param_groups[-1]["params"]:
            refuse_shards(self, parameter)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; it becomes as wide as what updates the parameters, where torch would give it their dtype."""
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        held = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, held, strict=True):
            for key, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor):
                    wide = value.is_floating_point() and key != "step"  # codes stay, and torch counts in fp32
                    dtype = compute_dtype(parameter.dtype) if wide else value.dtype
                    self.state[parameter][key] = value.to(parameter.device, dtype)


class PerParameterOptimizer(BaseOptimizer):
    """Base of optimizers with one rule, which looks at one parameter at a time."""

    @abstractmethod
    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take one step of the rule, in place; the parameter and its gradient are fp32 or wider."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update_in_fp32(self.update, parameter, self.state[parameter], group)
        return loss


def show_options(made: Any, options: type[OptimizerConfig], lr: float) -> None:
    """Show the options of a config class in the signature of what takes them by their names in torch, and in its `help`."""
    known = options.torch_options({}).items()
    keywords = [Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in known]
    first = Parameter("params", Parameter.POSITIONAL_OR_KEYWORD)
    rate = Parameter("lr", Parameter.POSITIONAL_OR_KEYWORD, default=lr)
    made.__signature__ = Signature([first, rate, *keywords])
    said = [f"    {name}: {text}" for name, text in options.torch_descriptions().items()]
    made.__doc__ = "\n".join([cleandoc(made.__doc__ or ""), "", "Args:", *said])


def takes_options(options: type[OptimizerConfig]) -> Callable[[Maker], Maker]:
    """Show the options of a config class as those of a function that makes an optimizer."""

    def shown(function: Maker) -> Maker:
        show_options(function, options, signature(function).parameters["lr"].default)
        return function

    return shown


def per_parameter(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the state of an optimizer is each parameter's own; others than those here are taken to be such."""
    return not isinstance(optimizer, BaseOptimizer) or optimizer.options.per_parameter


def as_groups(params: Parameters) -> Any:
    """Return parameters as torch takes them: a model becomes groups by role."""
    return parameter_groups(params) if isinstance(params, nn.Module) else params


def named_groups(params: Parameters) -> list[dict[str, Any]]:
    """Return groups of named parameters; raises GymError where names are missing."""
    given = list(as_groups(params))
    grouped = bool(given) and isinstance(given[0], dict)
    groups = [{**group, "params": list(group["params"])} for group in given] if grouped else [{"params": given}]
    if not all(isinstance(item, tuple) for group in groups for item in group["params"]):
        raise GymError(
            "LoRA pairs are told by the names of parameters", key="params", fix="give the model, or (name, parameter)"
        )
    return groups


def checked_options(options: type[OptimizerConfig], group: Mapping[str, Any]) -> OptimizerConfig:
    """Return what a group of parameters chooses. Raises ValueError for a learning rate or an option out of range."""
    rate = group["lr"]
    if not isinstance(rate, float | int | Tensor) or not 0 <= rate < inf:
        raise ValueError(f"Invalid learning rate: {rate}")
    for key, places in options.places().items():
        if key in group and not (isinstance(group[key], list | tuple) and len(group[key]) == places):
            raise ValueError(f"Invalid {key} of {options.__name__}, {group[key]!r}: it takes {places} numbers")
    try:
        return options.from_keywords(group)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"Invalid {where} of {options.__name__}, {first['input']}: {first['msg']}") from None


def update_in_fp32(
    update: Callable[[Tensor, Tensor, State, dict[str, Any]], None],
    parameter: Tensor,
    state: State,
    group: dict[str, Any],
) -> None:
    """Take a step of a rule in fp32 or wider, and round the parameter once where it has fewer bits.

    The rule is given the factors of experts as a stack of matrices.
    """
    assert parameter.grad is not None
    exact = compute_dtype(parameter.dtype)
    held, gradient = matrices(parameter, group), matrices(parameter.grad, group)
    wide = held.to(exact).contiguous()  # itself, where nothing is to be done
    update(wide, gradient.to(exact).contiguous(), state, group)
    if wide is not held:
        held.copy_(wide)


def matrices(tensor: Tensor, group: Mapping[str, Any]) -> Tensor:
    """Return a view of a matrix that holds a factor of each expert as the stack that it is (`stacked`); any other as it is."""
    shape = stacked(group, tuple(tensor.shape))
    if len(shape) == tensor.dim():
        return tensor
    experts = shape[0]
    return (
        tensor.unflatten(1, (-1, experts)).permute(2, 0, 1)
        if group["expert_dim"]
        else tensor.unflatten(0, (experts, -1))
    )


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which parameters of a dtype are updated."""
    return torch.promote_types(dtype, torch.float32)


def call_when_ready(parameter: Tensor, method: Callable[[Tensor], None]) -> None:
    """Have a method of an optimizer called with a parameter whenever its gradient is there, for as long as the optimizer lives.

    Another one may have the parameter afterwards, and finds its gradient.
    """
    weak = WeakMethod(method)

    def ready(parameter: Tensor) -> None:
        alive = weak()
        if alive is not None:
            alive(parameter)

    parameter.register_post_accumulate_grad_hook(ready)


def evaluate_closure(closure: Callable[[], Any] | None) -> Any:
    """Call the closure that torch lets a loop give to `step`, with gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


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
