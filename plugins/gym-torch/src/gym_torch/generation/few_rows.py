"""Linear layers of decoding steps, which have few rows: by a kernel where it is faster (`gym_torch.kernels.few_row_products`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from gym_torch.generation.cast_once import Rounded
from gym_torch.kernels.decoding_kernels import PRECISIONS
from gym_torch.kernels.few_row_products import Product, chosen
from gym_torch.patched_forward import computes_the_same

Forward = Callable[[Tensor], Tensor]


class FewRows:
    """A context for passes without gradients in which linear layers use the kernel. Weights may change between two passes."""

    def __init__(self, model: nn.Module) -> None:
        """Find the layers: in fp32 or bf16 on the CPU, and not within a compiled part."""
        parts = list(model.modules())
        compiled = any(part._compiled_call_impl is not None for part in parts)
        self._layers = [] if compiled else [part for part in parts if type(part) is nn.Linear and _fits(part.weight)]
        self._known: dict[tuple[int, int, int, torch.dtype], Product | None] = {}
        self._replaced: list[tuple[nn.Linear, Forward | None, Forward]] = []  # what was there before, and is now

    def __enter__(self) -> None:
        """Have the layers use the kernel; under autocast only those with a rounded copy of their weight."""
        if torch.is_grad_enabled():
            return
        for layer in self._layers:
            own: dict[str, Any] = vars(layer)
            before = own.get("forward")
            # What else takes its place may compute something else.
            if isinstance(before, Rounded) or computes_the_same(layer):
                held = before if isinstance(before, Rounded) else layer
                own["forward"] = partial(self._product, held, before or partial(nn.Linear.forward, layer))
                self._replaced.append((layer, before, own["forward"]))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the layers, except one whose `forward` another thread has replaced meanwhile."""
        for layer, before, mine in self._replaced:
            own: dict[str, Any] = vars(layer)
            if own.get("forward") is not mine:
                continue
            if before is None:
                del own["forward"]
            else:
                own["forward"] = before
        self._replaced = []

    def _product(self, layer: nn.Linear | Rounded, other: Forward, given: Tensor) -> Tensor:
        weight, dtype = layer.weight, given.dtype
        if torch.is_autocast_enabled("cpu") and dtype in PRECISIONS:
            dtype = torch.get_autocast_dtype("cpu")
        plain = type(given) is Tensor and dtype == weight.dtype and given.numel() > 0
        if not plain or torch.is_grad_enabled():  # another thread may train meanwhile
            return other(given)
        shape = given.numel() // given.shape[-1], weight.shape[0], weight.shape[1], dtype
        if shape not in self._known:
            self._known[shape] = chosen(shape[0], weight)
        own = self._known[shape]
        return other(given) if own is None else own(given.to(dtype), weight, layer.bias)


def _fits(weight: Tensor) -> bool:
    return type(weight) is nn.Parameter and weight.dtype in PRECISIONS and weight.device.type == "cpu"
