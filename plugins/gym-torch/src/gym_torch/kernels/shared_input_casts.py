"""Casts the input of several linear layers to bf16 once, not once for each layer.

Autocast casts the input of each linear layer separately: the input of the query, key and value projections and of the A matrices
of adapters is cast six times, saved six times for the backward pass, and its gradient is cast back six times and added in fp32.
Here consecutive layers with the same input tensor share one cast: the same numbers forward, and gradients are added before the
cast back.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn


def share_casts(model: nn.Module, head: nn.Module | None = None) -> None:
    """Have the linear layers of a model share the casts of their inputs under autocast. Idempotent.

    The `head` is left out: no other layer has its input, and a hook on it would keep `gym_torch.model.log_probs` from its
    fast path.
    """
    linear = [module for module in model.modules() if type(module) is nn.Linear]
    layers = [module for module in linear if module is not head and module not in _SHARING]
    cast = LastCast()
    for layer in layers:
        layer.register_forward_pre_hook(cast)
        _SHARING.add(layer)


_SHARING: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class LastCast:
    """A pre-hook of linear layers that keeps the cast of the last input, as long as that input is alive."""

    def __init__(self) -> None:
        #: What was given, the version and modes of its cast, and the cast: read and written at once, for threads share it.
        self._last: tuple[weakref.ref[Tensor], tuple[int, bool, bool, torch.dtype], Tensor] | None = None

    def __call__(self, _layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the input in the dtype of autocast; None where it needs no cast."""
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
