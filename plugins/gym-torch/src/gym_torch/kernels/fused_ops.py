"""Norms, gated activations, rotary positions and scores of labels on a CPU, each in one pass over memory (`fused_ops.c`).

torch computes a norm in eight operations and keeps four tensors of its size; here it is one, and what is kept is its input and a
number a row. Tensors are fp32 or bf16; in between numbers are fp32, so that nothing is rounded but what comes out. Tensors
without data get results without data, so that plans count what a run holds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

from gym_core import GymError
from gym_torch.kernels import native_code
from gym_torch.kernels.kernel_functions import KernelFunctions

SOURCE = Path(__file__).with_suffix(".c")
#: Comparisons become masks only where no one asks for exceptions of the processor.
FLAGS = (*native_code.THIS_MACHINE, "-fno-math-errno", "-fno-trapping-math")

_HALF = {torch.float32: 0, torch.bfloat16: 1}
_INT, _LONG, _FLOAT, _AT = ctypes.c_int, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "norm": (_INT, _INT, _AT, _AT, _AT, _AT, _LONG, _LONG, _FLOAT, _INT),
    "norm_back": (_INT, _INT, _AT, _AT, _AT, _AT, _AT, _AT, _LONG, _LONG, _INT),
    "gated": (_INT, _AT, _LONG, _AT, _LONG, _AT, _LONG, _LONG, _INT, _INT),
    "gated_back": (_INT, _AT, _LONG, _AT, _LONG, _AT, _AT, _AT, _LONG, _LONG, _INT, _INT),
    "turn": (_INT, _INT, _AT, _AT, _AT, _AT, _AT, _INT, _INT),
    "labels": (_INT, _AT, _AT, _AT, _LONG, _LONG, _INT, _INT),
}


@dataclass(frozen=True, eq=False)
class Kernel:
    """The compiled library."""

    name: str  #: the instructions it was compiled for
    calls: dict[str, Any]

    def run(self, call: str, *given: Any) -> None:
        """Call a function of the library: tensors become pointers, and nothing is done for tensors without data."""
        plain = []  # a step of decoding is many such calls, so each type is looked at once
        for part in given:
            if not isinstance(part, Tensor):
                plain.append(part)
            elif isinstance(part, FakeTensor):
                return
            else:
                plain.append(part.data_ptr())
        if self.calls[call](*plain, torch.get_num_threads()):
            raise GymError(f"`{call}` of {SOURCE.name} has no memory, or a label is outside the vocabulary")


@cache
def kernel() -> Kernel | None:
    """Return the kernel compiled for this machine; None where it cannot be compiled."""
    library = native_code.library(SOURCE, FLAGS)
    if library is None:
        return None
    library.gym_kernel.restype = ctypes.c_char_p
    calls = {name: library[f"gym_{name}"] for name in _ARGUMENTS}
    for name, call in calls.items():
        call.argtypes = _ARGUMENTS[name]
        call.restype = _INT if name in ("norm_back", "labels") else None
    return Kernel(library.gym_kernel().decode(), calls)


def functions() -> Sequence[KernelFunctions]:
    """Return the kernel functions; none where it cannot be compiled."""
    own = kernel()
    return () if own is None else (_functions(own),)


@cache
def _functions(own: Kernel) -> KernelFunctions:
    def both(query: Tensor, key: Tensor, *more: Any) -> tuple[Tensor, Tensor]:
        return rotate(own, query, *more), rotate(own, key, *more)

    return KernelFunctions(
        own.name,
        SOURCE.read_text(encoding="utf-8"),
        frozenset({"cpu"}),
        frozenset(_HALF),
        without_data=True,
        rms_norm=partial(rms_norm, own),
        gated=partial(gated, own),
        rotate=both,
        label_scores=partial(label_scores, own),
    )


def rms_norm(own: Kernel, given: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Return `given / sqrt(mean(given^2) + eps) * weight` along the last dimension (arXiv:1910.07467, equation 4) in a dtype."""
    if not torch.is_grad_enabled():  # where no one keeps anything, a function of autograd costs as much as a small norm
        return _normed(own, given.contiguous(), weight, eps, dtype)[0]
    found: Tensor = _Norm.apply(own, given, weight, eps, dtype)
    return found


def gated(own: Kernel, gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
    """Return `act(gate) * up` in their dtype, where `act` is GELU by tanh or SiLU (arXiv:2002.05202, equations 5 and 6)."""
    if not torch.is_grad_enabled():
        return _gate(own, _rows(gate), _rows(up), tanh).view(gate.shape)
    found: Tensor = _Gated.apply(own, gate, up, tanh)
    return found


def rotate(own: Kernel, given: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn `[rows, heads, tokens, dim]` by `cos` and `sin` `[rows or 1, tokens, turned]`, the first `turned` numbers by halves.

    What comes out has its heads next to each other, as attention reads them. cos and sin are constants.
    """
    if not torch.is_grad_enabled():
        return _turned(own, given, cos.float().contiguous(), sin.float().contiguous(), dtype, back=False)
    found: Tensor = _Rotary.apply(own, given, cos, sin, dtype)
    return found


def label_scores(own: Kernel, logits: Tensor, labels: Tensor, residual: bool) -> Tensor:
    """Return `log p(label)` `[rows]` in fp32 for logits `[rows, vocabulary]`, which are overwritten with `p - 1` if `residual`.

    Without a derivative of its own. Raises GymError where a label is outside the vocabulary.
    """
    scores = logits.new_empty(len(logits), dtype=torch.float32)
    own.run("labels", _HALF[logits.dtype], logits, labels.long().contiguous(), scores, *logits.shape, residual)
    return scores


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Kernel, given: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        given = given.contiguous()
        out, inverse = _normed(own, given, weight, eps, dtype)
        ctx.save_for_backward(given, weight, inverse)
        ctx.own = own
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        given, weight, inverse = ctx.saved_tensors
        by_given, by_out = torch.empty_like(given), by_out.contiguous()
        by_weight = weight.new_empty(weight.shape, dtype=torch.float32) if ctx.needs_input_grad[2] else None
        kinds = _HALF[given.dtype], _HALF[by_out.dtype]
        plain, size = weight.float().contiguous(), (len(inverse), given.shape[-1])
        ctx.own.run("norm_back", *kinds, given, plain, by_out, inverse, by_given, by_weight, *size)
        return None, by_given, None if by_weight is None else by_weight.to(weight.dtype), None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Kernel, gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
        gates, ups = _rows(gate), _rows(up)
        out = _gate(own, gates, ups, tanh).view(gate.shape)
        ctx.save_for_backward(gates, ups)
        ctx.options = own, tanh
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        (gates, ups), (own, tanh) = ctx.saved_tensors, ctx.options
        by_gate, by_up = (torch.empty(by_out.shape, dtype=gates.dtype, device=gates.device) for _ in range(2))
        places = gates, gates.stride(0), ups, ups.stride(0), by_out.contiguous(), by_gate, by_up
        own.run("gated_back", _HALF[gates.dtype], *places, *gates.shape, tanh)
        return None, by_gate, by_up, None


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Kernel, given: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
        cos, sin = (part.float().contiguous() for part in (cos, sin))
        ctx.save_for_backward(cos, sin)
        ctx.options = own, given.dtype
        return _turned(own, given, cos, sin, dtype, back=False)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        own, dtype = ctx.options
        cos, sin = ctx.saved_tensors
        return None, _turned(own, by_out, cos, sin, dtype, back=True), None, None, None


def _normed(own: Kernel, given: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the result of a norm, and the factor of each row."""
    rows, dim = prod(given.shape[:-1]), given.shape[-1]
    out = torch.empty_like(given, dtype=dtype)
    inverse = given.new_empty(rows, dtype=torch.float32)
    plain = weight.float().contiguous()
    own.run("norm", _HALF[given.dtype], _HALF[dtype], given, plain, out, inverse, rows, dim, eps)
    return out, inverse


def _gate(own: Kernel, gates: Tensor, ups: Tensor, tanh: bool) -> Tensor:
    """Return `act(gate) * up` for `[rows, dim]`, where rows may lie apart."""
    out = gates.new_empty(gates.shape)
    places = gates, gates.stride(0), ups, ups.stride(0)
    own.run("gated", _HALF[gates.dtype], *places, out, *gates.shape, tanh)
    return out


def _turned(own: Kernel, given: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype, back: bool) -> Tensor:
    given = given if given.stride(-1) == 1 else given.contiguous()
    rows, heads, tokens, dim = given.shape
    out = given.new_empty(rows, tokens, heads, dim, dtype=dtype)
    along = cos.stride(0) if len(cos) > 1 else 0, cos.stride(1)
    shape = (_LONG * 10)(*given.stride()[:3], *along, *given.shape, cos.shape[-1])
    own.run("turn", _HALF[given.dtype], _HALF[dtype], given, cos, sin, out, ctypes.addressof(shape), back)
    return out.transpose(1, 2)


def _rows(given: Tensor) -> Tensor:
    """Return it as `[rows, dim]`, whose strides say where a row is: those of a dimension of one number say nothing."""
    rows = given.reshape(-1, given.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()
