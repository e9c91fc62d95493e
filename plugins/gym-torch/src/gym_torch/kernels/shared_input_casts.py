"""Inputs of linear layers are cast to bf16 once, however many layers read them.

Autocast casts the input of each linear layer by itself: what queries, keys, values and the first matrices of adapters read is
cast six times, kept six times for the backward pass, and its gradient is cast back six times and added in fp32. Here layers one
after another that are given the same tensor share one cast: the same numbers forward, and their gradients are added before they
are cast back.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn


def share_casts(model: nn.Module, head: nn.Module | None = None) -> None:
    """Have the linear layers of a model share the casts of their inputs under autocast. Twice is as good as once.

    The `head` is left out: nothing else reads what it does, and `gym_torch.model.log_probs` takes the short way only where
    no hook looks on.
    """
    linear = [module for module in model.modules() if type(module) is nn.Linear]
    layers = [module for module in linear if module is not head and module not in _SHARING]
    cast = LastCast()
    for layer in layers:
        layer.register_forward_pre_hook(cast)
        _SHARING.add(layer)


_SHARING: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class LastCast:
    """A hook of linear layers that remembers the cast of what the last of them was given, as long as that lives."""

    def __init__(self) -> None:
        #: What was given, the version and modes of its cast, and the cast: read and written at once, for threads share it.
        self._last: tuple[weakref.ref[Tensor], tuple[int, bool, bool, torch.dtype], Tensor] | None = None

    def __call__(self, _layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the input cast as autocast asks for it; None where it is to stay as it is."""
        if len(inputs) != 1 or torch.compiler.is_compiling():
            return None
        (given,) = inputs
        kind = given.device.type
        if given.dtype != torch.float32 or not torch.is_autocast_enabled(kind) or given.is_inference():
            return None  # what inference mode makes has no version
        asked = given._version, given.requires_grad, torch.is_grad_enabled(), torch.get_autocast_dtype(kind)
        last = self._last
        if last is None or last[0]() is not given or last[1] != asked:
            last = self._last = weakref.ref(given, self._forget), asked, given.to(asked[3])
        return (last[2],)

    def _forget(self, which: weakref.ref[Tensor]) -> None:
        if self._last is not None and which is self._last[0]:
            self._last = None

    def __deepcopy__(self, _memo: dict[int, Any]) -> LastCast:
        return LastCast()  # a copied model has inputs of its own
