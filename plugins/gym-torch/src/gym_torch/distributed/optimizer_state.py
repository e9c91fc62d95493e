"""The state of an optimizer as tensors and plain data, by the names of the parameters.

No pickle, and no rounding: every tensor keeps its dtype, which torch's `load_state_dict` casts to its parameter's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gym_core import GymError

_Tree = Any  #: JSON: null, bool, number, string, list or dict
State = tuple[dict[str, Tensor], _Tree]


class NotPlainError(Exception):
    """An optimizer keeps what no checkpoint can hold."""


def take(optimizer: torch.optim.Optimizer, model: nn.Module, full: Callable[[Tensor], Tensor]) -> State:
    """Return the tensors of the state by `parameter//key`, and the rest: state and groups as plain data.

    `full` returns the whole of a tensor on the CPU (`Replicated.full`). Raises NotPlainError for a state that is neither.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    states = {
        names[parameter]: {
            str(key): _flatten(value, f"{names[parameter]}//{key}", tensors, full) for key, value in state.items()
        }
        for parameter, state in optimizer.state.items()
    }
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key != "params"}
        plain = {key: _flatten(value, f"group {number}//{key}", tensors, full) for key, value in options.items()}
        groups.append(plain | {"params": [names[parameter] for parameter in group["params"]]})
    return tensors, {"states": states, "groups": groups}


def put(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    tree: _Tree,
    like: Callable[[Tensor, nn.Parameter], Tensor],
) -> None:
    """Give an optimizer over the same parameters the state that `take` returned.

    `like` lays a tensor out as a parameter is (`Replicated.like`); tensors of another shape are left as they are.
    Raises GymError when its groups hold other parameters.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    if found != [group["params"] for group in tree["groups"]]:
        raise GymError("the optimizer of the checkpoint has other parameter groups", key="optimizer")
    for group, saved in zip(optimizer.param_groups, tree["groups"], strict=True):
        group.update(
            {
                key: _restore(value, tensors, lambda tensor, device: tensor)
                for key, value in saved.items()
                if key != "params"
            }
        )
    optimizer.state.clear()
    for parameter, name in names.items():
        if name in tree["states"]:
            lay = partial(_lay, parameter=parameter, like=like)
            optimizer.state[parameter] = {
                key: _restore(value, tensors, lay) for key, value in tree["states"][name].items()
            }


def _lay(
    tensor: Tensor, device: str, parameter: nn.Parameter, like: Callable[[Tensor, nn.Parameter], Tensor]
) -> Tensor:
    if tensor.shape == parameter.shape:
        return like(tensor, parameter)
    return tensor.to(parameter.device) if device == "parameter" else tensor


def _flatten(value: Any, name: str, tensors: dict[str, Tensor], full: Callable[[Tensor], Tensor]) -> _Tree:
    if isinstance(value, Tensor):
        tensors[name] = full(value)
        return {"tensor": name, "device": "cpu" if value.device.type == "cpu" else "parameter"}
    if isinstance(value, dict):
        return {"dict": [[key, _flatten(item, f"{name}/{key}", tensors, full)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        items = [_flatten(item, f"{name}/{number}", tensors, full) for number, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise NotPlainError(f"a {type(value).__name__} as `{name}`")


def _restore(tree: _Tree, tensors: Mapping[str, Tensor], lay: Callable[[Tensor, str], Tensor]) -> Any:
    if isinstance(tree, list):
        return [_restore(item, tensors, lay) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        tensor = tensors[tree["tensor"]].clone()
        return lay(tensor, tree["device"])
    if "tuple" in tree:
        return tuple(_restore(item, tensors, lay) for item in tree["tuple"])
    return {key: _restore(item, tensors, lay) for key, item in tree["dict"]}
