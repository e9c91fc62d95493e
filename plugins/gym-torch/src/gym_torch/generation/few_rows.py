"""The linear layers of a model while few rows pass through it: by a kernel where it pays (`gym_torch.model.few_row_products`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from gym_torch.model.few_row_products import Product, chosen
from gym_torch.model.onednn_linear import sped_up

Forward = Callable[[Tensor], Tensor]


class FewRows:
    """A context of passes without gradients. Weights may change between two of them, and outside of it nothing is changed."""

    def __init__(self, model: nn.Module) -> None:
        """Find the layers: in fp32 on the CPU, and not within a part that is compiled."""
        parts = list(model.modules())
        compiled = any(part._compiled_call_impl is not None for part in parts)
        self._layers = [] if compiled else [part for part in parts if type(part) is nn.Linear and _fits(part.weight)]
        self._known: dict[tuple[int, int, int], Product | None] = {}
        self._replaced: list[tuple[nn.Linear, Forward | None, Forward]] = []  # what was there before, and is now

    def __enter__(self) -> None:
        """Have the layers multiply by the kernel; under autocast, which rounds, they do as before."""
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return
        for layer in self._layers:
            own: dict[str, Any] = vars(layer)
            before = own.get("forward")
            if before is None or sped_up(layer):  # what else takes its place may compute something else
                own["forward"] = partial(self._product, layer, before or partial(nn.Linear.forward, layer))
                self._replaced.append((layer, before, own["forward"]))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Have them do as before, but for a layer in whose place another thread has put something meanwhile."""
        for layer, before, mine in self._replaced:
            own: dict[str, Any] = vars(layer)
            if own.get("forward") is not mine:
                continue
            if before is None:
                del own["forward"]
            else:
                own["forward"] = before
        self._replaced = []

    def _product(self, layer: nn.Linear, other: Forward, given: Tensor) -> Tensor:
        plain = type(given) is Tensor and given.dtype == torch.float32 and given.numel() > 0
        if not plain or torch.is_grad_enabled():  # another thread may train meanwhile
            return other(given)
        weight = layer.weight
        shape = given.numel() // given.shape[-1], *weight.shape
        if shape not in self._known:
            self._known[shape] = chosen(shape[0], weight)
        own = self._known[shape]
        return other(given) if own is None else own(given, weight, layer.bias)


def _fits(weight: Tensor) -> bool:
    return type(weight) is nn.Parameter and weight.dtype == torch.float32 and weight.device.type == "cpu"
