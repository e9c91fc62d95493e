"""Whatever decides what a layer computes, as plain data: it names compiled code, and tells layers that are alike from others."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from gym_data.provenance import maker
from gym_torch.patched_forward import INNER, plain

#: Attributes that every module has, and those that do not say what a layer computes.
_PASSING = frozenset(vars(nn.Module())) | {
    "_is_hf_initialized",
    "gradient_checkpointing",
    "_gradient_checkpointing_func",
    "forward",
    INNER,
}
_NUMBERING = frozenset({"layer_idx", "target_name"})  #: what tells which of several layers one is, wherever it stands
_SCALARS = (bool, int, float, str, bytes, complex, type(None), type(...))
_INSTALLED = {"site-packages", "dist-packages"}


class Description:
    """Describes layers and what they hold, by classes, values and the contents of tensors, and notes whose code those are."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.code: set[str] = set()  #: names of the modules of Python that classes and functions are from
        self.strange: set[str] = set()  #: names of the classes of what cannot be described
        self._met: dict[int, tuple[Any, Any]] = {}  #: values, which thus live on, and what was made of them

    def layer(self, layer: nn.Module) -> Any:
        """Return what tells a layer from others: its modules, what they hold and compute, and the shapes of its weights."""
        parts = [[self.of(type(part)), self.of(held(part)), self.of(own_forward(part))] for part in layer.modules()]
        weights = [
            [name, list(weight.shape), str(weight.dtype), weight.requires_grad]
            for weights in (layer.named_parameters(), layer.named_buffers())
            for name, weight in weights
        ]
        return [str(layer), parts, weights]

    def of(self, value: Any) -> Any:
        """Return the description of a value, which for what cannot be described is the name of its class."""
        if type(value) in _SCALARS:
            return value
        if isinstance(value, type):
            self.code.update(base.__module__ for base in value.__mro__)
            return f"{value.__module__}:{value.__qualname__}"
        if id(value) not in self._met:
            self._met[id(value)] = value, "itself"
            try:
                self._met[id(value)] = value, [self.of(type(value)), self._inside(value)]
            except Exception:  # whatever foreign objects raise that are no data
                self.strange.add(type(value).__name__)
        return self._met[id(value)][1]

    def _inside(self, value: Any) -> Any:
        if isinstance(value, nn.Module):  # described where it stands
            return None
        if isinstance(value, Tensor):
            content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            return [str(value.dtype), list(value.shape), sha256(content).hexdigest()]
        if isinstance(value, FunctionType):
            self.code.add(value.__module__)
            closed = [cell.cell_contents for cell in value.__closure__ or ()]
            return [value.__module__, value.__qualname__, self.of([value.__defaults__, value.__kwdefaults__, closed])]
        if isinstance(value, partial):
            return self.of([value.func, value.args, value.keywords])
        if isinstance(value, dict):
            return [[self.of(key), self.of(item)] for key, item in value.items() if key not in _NUMBERING]
        if isinstance(value, set | frozenset):
            return sorted(json.dumps(self.of(item), default=str) for item in value)
        if isinstance(value, list | tuple | Iterator):
            return [self.of(item) for item in value]
        return self.of(value.__reduce_ex__(4))  # how it would be pickled: by name, or what it is made of


def described(layer: nn.Module) -> str:
    """Return what tells a layer from others."""
    return json.dumps(Description().layer(layer), default=str)


def held(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that may say what it computes."""
    return {name: value for name, value in vars(module).items() if name not in _PASSING}


def own_forward(module: nn.Module) -> Any:
    """Return what a module computes instead of what its class says, whatever is around that; None where nothing is."""
    return None if plain(module) else vars(module).get(INNER, vars(module).get("forward"))


def made_by(code: Iterable[str]) -> list[Any]:
    """Return what names the code of modules of Python: the text of each, and the versions of the packages that they are in.

    Of a package that is no installed one, all of its code is named. What of Python itself they use goes by its version.
    """
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in sorted(code)}
    texts = {name: sha256(Path(file).read_bytes()).hexdigest() for name, file in files.items() if file}
    tops = {name.partition(".")[0] for name in files} - sys.stdlib_module_names
    return [texts, [_versions(top) if _installed(top) else maker(top) for top in sorted(tops)]]


def _installed(package: str) -> bool:
    try:
        spec = find_spec(package)
    except ValueError:  # `__main__` has none
        return False
    return spec is not None and not _INSTALLED.isdisjoint(Path(spec.origin or "").parts)


@cache
def _versions(package: str) -> list[list[str]]:
    """Return name and version of the distributions that bring an installed package: that of its name, if there is one."""
    try:
        return [[package, version(package)]]
    except PackageNotFoundError:
        return sorted([name, version(name)] for name in packages_distributions().get(package, ()))
