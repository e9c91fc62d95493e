"""fp32 products on a CPU by oneDNN where it is faster than MKL: with frozen weights below an adapter, and of few rows.

torch multiplies fp32 matrices with MKL, which leaves the widest registers of some processors unused; oneDNN uses them, and reads
weights in place. Both sum in fp32, in different orders. A trial on this machine decides, and a run keeps its choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gym_torch.kernels.kernel_functions import KernelFunctions
from gym_torch.kernels.kernel_trials import watched
from gym_torch.kernels.precision_probe import milliseconds, remembered

ROWS = 512  #: of the trial
WORTH = 1.15  #: oneDNN must be so many times as fast
LEAST = 256  #: inputs of the narrowest layer, below which products take no time
FEW = 4  #: rows below which there is nothing to gain


def frozen(model: nn.Module) -> list[nn.Linear]:
    """Return the frozen fp32 linear layers on the CPU."""
    return [
        layer
        for layer in model.modules()
        if type(layer) is nn.Linear
        and "forward" not in vars(layer)
        and layer.weight.dtype == torch.float32
        and layer.weight.device.type == "cpu"
        and not any(weight.requires_grad for weight in layer.parameters())
    ]


def speed_up(layers: list[nn.Linear]) -> None:
    """Have layers use oneDNN while they are frozen."""
    for layer in layers:
        layer.forward = partial(_linear, layer)  # type: ignore[method-assign]


def sped_up(layer: nn.Linear) -> bool:
    """Return whether `speed_up` replaced the forward pass of a layer."""
    forward = vars(layer).get("forward")
    return type(forward) is partial and forward.func is _linear


def pays(width: int) -> bool:
    """Return whether oneDNN is faster on this machine, for matrices of this width."""
    if width < LEAST or not torch.backends.mkldnn.is_available():
        return False
    found = remembered("frozen products", str(width), partial(_trial, width))
    return bool(found["usual_ms"] > WORTH * found["onednn_ms"])


def _linear(layer: nn.Linear, given: Tensor) -> Tensor:
    few = given.numel() < FEW * given.shape[-1]
    other = given.dtype != torch.float32 or torch.is_autocast_enabled("cpu") or watched()
    if few or other or layer.weight.requires_grad:
        return nn.functional.linear(given, layer.weight, layer.bias)
    found: Tensor = _Product.apply(given, layer.weight)  # type: ignore[no-untyped-call]
    return found if layer.bias is None else found + layer.bias


def few_rows(given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `given weight^T + bias`, `[..., inputs]` by `[outputs, inputs]`, as `KernelFunctions.product` promises."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(given, weight, bias, "none", [], "")
    return found


@cache
def functions() -> Sequence[KernelFunctions]:
    """Return the product of few rows, where torch has oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return ()
    fp32 = frozenset({torch.float32})
    return (KernelFunctions("onednn", torch.__version__, frozenset({"cpu"}), fp32, product=few_rows),)


class _Product(torch.autograd.Function):
    """`x W^T` for a constant W."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return _forward(given.reshape(-1, given.shape[-1]), weight).view(*given.shape[:-1], -1)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        rows = by_output.reshape(-1, by_output.shape[-1])
        return _pulled(rows, ctx.weight).view(*by_output.shape[:-1], -1), None


def _forward(rows: Tensor, weight: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.mkldnn_linear(rows.contiguous().to_mkldnn(), weight).to_dense()
    return found


def _pulled(rows: Tensor, weight: Tensor) -> Tensor:
    shape = [len(rows), weight.shape[1]]
    given = rows.contiguous().to_mkldnn()
    found: Tensor = torch.ops.aten.mkldnn_linear_backward_input(shape, given, weight).to_dense()
    return found


@torch.no_grad()
def _trial(width: int) -> dict[str, Any]:
    draws = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(count, width, generator=draws) for count in (ROWS, width))

    def both(product: Callable[[Tensor, Tensor], Tensor], pulled: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return pulled(product(rows, weight), weight)

    usual, onednn = milliseconds(partial(both, nn.functional.linear, torch.matmul), partial(both, _forward, _pulled))
    return {"usual_ms": usual, "onednn_ms": onednn}
