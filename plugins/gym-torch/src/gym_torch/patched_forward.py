"""Replaces or wraps the forward pass of a module instance.

Functions are bound to the module they serve, so that a copy of the model has its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, update_wrapper
from types import MethodType
from typing import Any

from torch import nn

INNER = "whole_forward"  #: where a module keeps what `surround` was put around


class Replaced(partial[Any]):
    """What `replace` puts in the place of the forward pass of a class: it computes the same."""


def plain(module: nn.Module) -> bool:
    """Return whether a module computes what its class says, if within something that `surround` put around it."""
    own = vars(module)
    inner = own.get(INNER, own.get("forward"))
    return inner is None or getattr(inner, "__func__", None) is type(module).forward


def called_alone(module: nn.Module) -> bool:
    """Whether a call of a module computes what its class says and nothing else: no hook looks on."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return not any(hooks) and computes_the_same(module)


def computes_the_same(module: nn.Module) -> bool:
    """Whether what a call of a module computes is what its class says, maybe in another way."""
    return type(vars(module).get("forward")) in (type(None), Replaced)


def replace(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Have `forward(module, ...)` compute what the class did; what was put around it stays.

    It says of itself what that of the class does, and is copied and pickled with the module.
    """
    own = MethodType(type(module).forward, module)
    setattr(module, INNER if INNER in vars(module) else "forward", update_wrapper(Replaced(forward, module), own))


def restore(module: nn.Module) -> None:
    """Have the class compute again what `replace` took from it; what was put around it stays."""
    own = vars(module)
    if type(own.get(INNER)) is Replaced:
        setattr(module, INNER, MethodType(type(module).forward, module))
    elif type(own.get("forward")) is Replaced:
        del own["forward"]


def surround(module: Any, forward: Callable[..., Any]) -> None:
    """Have `forward(module, ...)` be called, which finds what was so far as `module.whole_forward`. Twice is as good as once."""
    if INNER not in vars(module):
        module.whole_forward = module.forward
        module.forward = MethodType(forward, module)


def takes_one(module: nn.Module) -> bool:
    """Return whether a module is given one tensor and nothing else: no positions, mask or cache."""
    options = inspect.signature(module.forward).parameters.values()
    return [option.kind for option in options] == [inspect.Parameter.POSITIONAL_OR_KEYWORD]
