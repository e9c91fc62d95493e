"""What `gym_accel.triton_kernels` computes, as functions of torch with their gradients."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from gym_accel import Triton, triton_kernels
from gym_torch.kernels.kernel_functions import KernelFunctions

PROGRAMS = 256  #: most parts of the gradient of a norm's weight
PART = 1024  #: numbers of a row that a program of a gate computes
LOGITS = 8192  #: of a row that a program holds at once


def functions(config: Triton) -> KernelFunctions:
    """Return the functions, for the devices that Triton compiles for, or for a CPU where it interprets them."""
    devices = {"cpu"} if triton.knobs.runtime.interpret else {"cuda", "xpu"}
    return KernelFunctions(
        f"triton {triton.__version__}",
        triton.__version__,
        frozenset(devices),
        frozenset({torch.float32, torch.bfloat16, torch.float16}),
        rms_norm=rms_norm,
        gated=gated,
        rotate=rotate,
        label_scores=label_scores,
    )


def rms_norm(given: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Return what `KernelFunctions.rms_norm` promises."""
    found: Tensor = _Norm.apply(given, weight, eps, dtype)
    return found


def gated(gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
    """Return what `KernelFunctions.gated` promises."""
    found: Tensor = _Gated.apply(gate, up, tanh)
    return found


def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return what `KernelFunctions.rotate` promises, with heads next to each other, as attention reads them."""
    return _Rotary.apply(query, cos, sin, dtype), _Rotary.apply(key, cos, sin, dtype)


def label_scores(logits: Tensor, labels: Tensor, residual: bool) -> Tensor:
    """Return what `KernelFunctions.label_scores` promises; a label outside the vocabulary scores NaN."""
    scores = logits.new_empty(len(logits), dtype=torch.float32)
    size = logits.shape[1]
    block = min(LOGITS, triton.next_power_of_2(size))
    triton_kernels.label_scores[(len(logits),)](
        logits, labels.contiguous(), scores, size, residual, block, num_warps=_warps(block)
    )
    return scores


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        given, weight = given.contiguous(), weight.contiguous()
        rows, dim = prod(given.shape[:-1]), given.shape[-1]
        out = torch.empty_like(given, dtype=dtype)
        inverse = given.new_empty(rows, dtype=torch.float32)
        block = triton.next_power_of_2(dim)
        triton_kernels.norm[(rows,)](given, weight, out, inverse, dim, eps, block, num_warps=_warps(block))
        ctx.save_for_backward(given, weight, inverse)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        given, weight, inverse = ctx.saved_tensors
        rows, dim = len(inverse), given.shape[-1]
        each = -(-rows // PROGRAMS)
        programs = -(-rows // each)
        by_given = torch.empty_like(given)
        by_weight = given.new_empty(programs, dim, dtype=torch.float32)
        block = triton.next_power_of_2(dim)
        triton_kernels.norm_back[(programs,)](
            given, weight, inverse, by_out.contiguous(), by_given, by_weight, rows, dim, each, block,
            num_warps=_warps(block),
        )  # fmt: skip
        return by_given, by_weight.sum(0).to(weight.dtype), None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
        out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
        flat = _rows(gate), _rows(up)
        triton_kernels.gated[_grid(out)](
            *flat, out, gate.shape[-1], flat[0].stride(0), flat[1].stride(0), tanh, _part(out)
        )
        ctx.save_for_backward(gate, up)
        ctx.tanh = tanh
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = (_rows(part) for part in ctx.saved_tensors)
        found = [torch.empty(by_out.shape, dtype=gate.dtype, device=gate.device) for _ in range(2)]
        triton_kernels.gated_back[_grid(by_out)](
            gate, up, by_out.contiguous(), *found, gate.shape[-1], gate.stride(0), up.stride(0), ctx.tanh, _part(by_out)
        )
        return *found, None


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
        cos, sin = cos.contiguous(), sin.contiguous()
        ctx.save_for_backward(cos, sin)
        ctx.dtype = given.dtype
        return _turned(given, cos, sin, dtype, back=False)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turned(by_out, cos, sin, ctx.dtype, back=True), None, None, None


def _turned(given: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype, back: bool) -> Tensor:
    given = given if given.stride(-1) == 1 else given.contiguous()
    rows, heads, tokens, dim = given.shape
    out = given.new_empty(rows, tokens, heads, dim, dtype=dtype)
    blocks = triton.next_power_of_2(heads), triton.next_power_of_2(dim // 2)
    row, head, token, _ = given.stride()
    along = cos.stride(0) if len(cos) > 1 else 0
    triton_kernels.turn[(rows * tokens,)](
        given, cos, sin, out, tokens, heads, dim // 2, row, head, token, along, back, *blocks,
        num_warps=_warps(blocks[0] * blocks[1]),
    )  # fmt: skip
    return out.transpose(1, 2)


def _rows(given: Tensor) -> Tensor:
    """Return it as `[rows, dim]`, without a copy where numbers of a row lie next to each other, and rows evenly."""
    flat = given.reshape(-1, given.shape[-1])
    return flat if flat.stride(-1) == 1 else flat.contiguous()


def _grid(out: Tensor) -> tuple[int, int]:
    return prod(out.shape[:-1]), -(-out.shape[-1] // _part(out))


def _part(out: Tensor) -> int:
    return int(min(PART, triton.next_power_of_2(out.shape[-1])))


def _warps(block: int) -> int:
    """Return how many groups of 32 threads share a block: about eight numbers a thread and more, sixteen groups at most."""
    return int(min(16, max(1, triton.next_power_of_2(block) // 256)))
