"""The state of an optimizer as tensors and plain data, by the names of the parameters.

No pickle, and no rounding: every tensor keeps its dtype, which torch's `load_state_dict` casts to its parameter's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gym_core import GymError

_Tree = Any  #: JSON: null, bool, number, string, list or dict


def take(optimizer: torch.optim.Optimizer, model: nn.Module) -> tuple[dict[str, Tensor], _Tree]:
    """Return the tensors of the state by `parameter//key`, and the rest: state and groups as plain data."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    states = {
        names[parameter]: {
            str(key): _flatten(value, f"{names[parameter]}//{key}", tensors) for key, value in state.items()
        }
        for parameter, state in optimizer.state.items()
    }
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key != "params"}
        plain = {key: _flatten(value, f"group {number}//{key}", tensors) for key, value in options.items()}
        groups.append(plain | {"params": [names[parameter] for parameter in group["params"]]})
    return tensors, {"states": states, "groups": groups}


def put(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], tree: _Tree) -> None:
    """Give an optimizer over the same parameters the state that `take` returned.

    Raises GymError when its groups hold other parameters.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    if found != [group["params"] for group in tree["groups"]]:
        raise GymError("the optimizer of the checkpoint has other parameter groups", key="optimizer")
    for group, saved in zip(optimizer.param_groups, tree["groups"], strict=True):
        group.update({key: _restore(value, tensors, None) for key, value in saved.items() if key != "params"})
    optimizer.state.clear()
    for parameter, name in names.items():
        if name in tree["states"]:
            state = tree["states"][name]
            optimizer.state[parameter] = {
                key: _restore(value, tensors, parameter.device) for key, value in state.items()
            }


def _flatten(value: Any, name: str, tensors: dict[str, Tensor]) -> _Tree:
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous()
        return {"tensor": name, "device": "cpu" if value.device.type == "cpu" else "parameter"}
    if isinstance(value, dict):
        return {"dict": [[key, _flatten(item, f"{name}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        items = [_flatten(item, f"{name}/{number}", tensors) for number, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"optimizer state {name} is a {type(value).__name__}, which no checkpoint can hold")


def _restore(tree: _Tree, tensors: Mapping[str, Tensor], device: torch.device | None) -> Any:
    if isinstance(tree, list):
        return [_restore(item, tensors, device) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        tensor = tensors[tree["tensor"]].clone()
        return tensor.to(device) if device is not None and tree["device"] == "parameter" else tensor
    if "tuple" in tree:
        return tuple(_restore(item, tensors, device) for item in tree["tuple"])
    return {key: _restore(item, tensors, device) for key, item in tree["dict"]}
