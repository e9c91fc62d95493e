"""Modules with other weights in them, while another thread computes with those they have: `functional_call` changes these."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import Any

from torch import Tensor, nn


def with_weights(
    module: nn.Module, weights: Mapping[str, Tensor], forward: Callable[..., Any] | None = None
) -> nn.Module:
    """Return a module over the same tensors that has others in the place of some weights, by their names in it.

    It computes with `forward`, by default as its class does; modules inside that have none of the weights are shared.
    """
    made = copy.copy(module)
    inner: dict[str, dict[str, Tensor]] = {}
    made._parameters = {**module._parameters}
    for name, weight in weights.items():
        place, dot, rest = name.partition(".")
        if dot:
            inner.setdefault(place, {})[rest] = weight
        else:
            made._parameters[name] = weight  # type: ignore[assignment]
    made._modules = {
        **module._modules,
        **{place: with_weights(getattr(module, place), each) for place, each in inner.items()},
    }
    vars(made).pop("forward", None)
    if forward is not None:
        vars(made)["forward"] = _bound(forward, module, made)
    return made


def _bound(forward: Callable[..., Any], module: nn.Module, made: nn.Module) -> Callable[..., Any]:
    """Return what computes for a module, for a copy of it."""
    if isinstance(forward, MethodType) and forward.__self__ is module:
        return MethodType(forward.__func__, made)
    if isinstance(forward, partial) and forward.args[:1] == (module,):
        return partial(forward.func, made, *forward.args[1:], **forward.keywords)
    return forward
