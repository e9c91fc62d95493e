"""Which layers of a model an update beside them changes, and which ones a model uses in a way that knows nothing of it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterable, Mapping
from functools import cache

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from gym_adapters.target_modules import require, within
from gym_core import GymError
from gym_torch.language_part import LANGUAGE, PROJECTOR, TOWER, in_parts

KEY = "adapter.target_modules"
TOLD = {LANGUAGE: "language model", TOWER: "vision tower", PROJECTOR: "projector"}
#: What a method asks of the weight of a layer without computing with it.
ASKED = ("dtype", "device", "shape", "size", "data", "requires_grad")


def unfit_layers(model: PreTrainedModel, parts: Collection[str] = (LANGUAGE,)) -> dict[str, str]:
    """Return the paths of layers beside which an update would change nothing, or the wrong thing, and why.

    Layers outside of `parts` are among them, which are those of `gym_torch.language_part.in_parts`.

    A state space of Mamba hands the weights of its projections to kernels, and so does not call the layers; which of them it does
    call may depend on the device. Routers of some mixtures are linear layers that return a choice.
    """
    own = {type(module).__module__ for module in model.modules() if isinstance(module, PreTrainedModel)}
    found, products, inside = dict[str, str](), dict[type[nn.Module], bool](), in_parts(model, parts)
    told = " or the ".join(TOLD[part] for part in parts)
    for path, module in model.named_modules():
        start = f"{path}." if path else ""
        for name, layer in module.named_children():
            if not inside(start + name) and any(True for _ in layer.parameters(recurse=False)):
                found[start + name] = f"`{name}` is no part of the {told}, and stays as it is"
            elif name in _used(module.__class__):
                found[start + name] = (
                    f"{type(module).__name__} computes with the weight of `{name}` and does not call it"
                )
            elif type(layer).__module__ in own and isinstance(layer, nn.Linear):
                if type(layer) not in products:
                    products[type(layer)] = _is_product(layer)
                if not products[type(layer)]:
                    found[start + name] = f"`{name}` is a {type(layer).__name__}, which is no plain product"
    return found


def require_layers(names: Iterable[str], fitting: list[str], unfit: Mapping[str, str]) -> None:
    """Raise GymError for a name in none of the `fitting` paths, which says what is there instead, or why it is `unfit`."""
    wanted = list(names)
    for name in wanted:
        if not any(within(path, name) for path in fitting):
            for path, why in unfit.items():
                if within(path, name):
                    raise GymError(f"{why}: an update beside it would be lost", key=KEY, fix="name others, or all")
    require(wanted, fitting, KEY)


@cache
def _used(kind: type[nn.Module]) -> frozenset[str]:
    """Return the names of the layers whose weights the methods of a class compute with.

    The source says it of all branches at once. A pass, even one on the meta device, would say it of one: a state space of Mamba
    calls its projections on a CPU, and hands their weights to a kernel on a GPU.
    """
    found: set[str] = set()
    for base in kind.__mro__:
        if issubclass(base, nn.Module) and base not in (nn.Module, PreTrainedModel):
            try:
                source = inspect.getsource(base)
            except (OSError, TypeError):  # a class without a file
                continue
            found |= _computed_with(ast.parse(textwrap.dedent(source)))
    return frozenset(found)


def _computed_with(source: ast.AST) -> set[str]:
    """Return each `name` of which a source reads `self.name.weight`, but to ask about it, to take rows of it or to fill it."""
    found = set[str]()
    for parent in ast.walk(source):
        for child in ast.iter_child_nodes(parent):
            match child:
                case ast.Attribute(ast.Attribute(ast.Name("self"), name), "weight", ast.Load()):
                    if not _no_use(parent, child):
                        found.add(name)
    return found


def _no_use(parent: ast.AST, weight: ast.AST) -> bool:
    """Whether a piece of code that has a weight as its part does not compute with the whole of it."""
    match parent:
        case ast.Attribute(attr=asked, ctx=written):
            return asked in ASKED or isinstance(written, ast.Store)
        case ast.Subscript(value=taken):  # rows, as embeddings give
            return taken is weight
        case ast.Call(func=ast.Name("isinstance" | "getattr" | "hasattr")):
            return True
        case ast.Call(func=ast.Attribute(attr=called)):
            return called.endswith("_")  # `init.normal_` and others that write into a tensor are called so
    return False


@torch.no_grad()
def _is_product(layer: nn.Linear) -> bool:
    """Whether a layer with a forward pass of its own gives what a linear one would."""
    given = layer.weight.new_ones(1, layer.in_features)
    wanted = functional.linear(given, layer.weight, layer.bias)
    try:
        found = layer(given)
    except (RuntimeError, ValueError, TypeError, IndexError):  # it takes inputs of another shape
        return False
    same = isinstance(found, torch.Tensor) and found.shape == wanted.shape
    return same and (found.is_meta or torch.allclose(found, wanted, rtol=1e-2, atol=1e-3))
