"""What a layer is made of at a time, to see cheaply at every call whether it still is."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from gym_torch.compiled.layer_description import held

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_training = itemgetter("training")


class LayerState:
    """What the modules of a layer hold, and objects that these hold, and the hooks inside."""

    def __init__(self, layer: nn.Module) -> None:
        """Remember it."""
        inside = list(layer.modules())
        self._parts = [vars(part) for part in inside]
        places = [(vars(part), name) for part in inside for name in ("_modules", *held(part))]
        places += [(vars(part), name) for part in inside[1:] for name in ("forward", *_HOOKS)]
        places += [
            (weights, name)
            for part in inside
            for weights in (part._parameters, part._buffers)
            for name, weight in weights.items()
            if weight is None
        ]
        objects = list(_objects([held(part) for part in inside]))
        places += [(vars(each), name) for each in objects if not isinstance(each, Tensor) for name in vars(each)]
        self._held, self._names = [each for each, _ in places], [name for _, name in places]
        self._values = [_copied(each.get(name)) for each, name in places]
        self._tensors = [
            (each, each._version) for each in objects if isinstance(each, Tensor) and not each.is_inference()
        ]

    def lasts(self, training: bool) -> bool:
        """Return whether the layer is what it was, all of it in one mode, and no hook of torch looks at all modules."""
        try:
            return (
                {*map(_training, self._parts)} == {training}
                and list(map(dict.get, self._held, self._names)) == self._values
                and all(tensor._version == number for tensor, number in self._tensors)
                and not _has_any_global_hook()
            )
        except (RuntimeError, ValueError):  # other tensors, or arrays: they are not compared
            return False


def hooks_of(module: nn.Module) -> tuple[dict[int, Any], ...]:
    """Return the hooks that see what goes through a module."""
    return tuple(vars(module)[name] for name in _HOOKS)


def _copied(value: Any) -> Any:
    """Return a copy of containers, of what they hold itself."""
    if isinstance(value, list):
        return [_copied(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_copied(item) for item in value)
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return set(value) if isinstance(value, set) else value


def _objects(value: Any) -> Iterator[Any]:
    """Yield tensors and objects with attributes, each once, that containers and such objects hold."""
    met: dict[int, Any] = {}
    waiting = [value]
    for each in waiting:
        if id(each) in met or isinstance(each, nn.Module | type | FunctionType | ModuleType):
            continue
        met[id(each)] = each
        if isinstance(each, list | tuple | set | frozenset):
            waiting += each
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, Tensor):
            yield each
        elif hasattr(each, "__dict__"):
            yield each
            waiting += vars(each).values()
