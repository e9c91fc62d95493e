"""Attention within the segments of a packed row on a CPU, in bf16 and fp32: one C call forward and one backward for a row.

The backward pass of torch's fused attention takes ten times as long as its forward pass on segments of usual lengths. This kernel
(`fused_attention.c`) is used where a trial on this machine finds it at least as exact as torch, and faster, for a shape of heads.
Results of a segment do not depend on the other segments of the row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.autograd.function import once_differentiable

from gym_core import GymError
from gym_torch.attention import attention_operator, block_attention
from gym_torch.kernels import native_code
from gym_torch.kernels.kernel_functions import KernelFunctions, Scores, spelled
from gym_torch.kernels.kernel_trials import Choices, Results, Work, with_gradients
from gym_torch.segment_spans import Spans

SOURCE = Path(__file__).with_suffix(".c")
RECORD = "fused_attention"  #: in run.json: by shape of heads, the kernel that a run took, or ""
#: By the precision of what attends: how the file is compiled for it.
FLAGS: dict[torch.dtype, tuple[str, ...]] = {torch.bfloat16: (), torch.float32: ("-DGYM_FP32",)}
LONG = 640  #: tokens of the largest tree of segments from which on a row is tried as one of long segments
LENGTHS = {
    False: (150, 60, 33, 150, 400),
    True: (1500, 900),
}  #: tokens of the segments of a trial, by whether they are long

Tensors = tuple[Tensor, Tensor, Tensor]
Attention = Callable[[Tensor, Tensor, Tensor, Spans, Scores], Tensor | None]


class _Row(ctypes.Structure):
    """The `Row` of `fused_attention.c`."""

    _fields_ = [
        ("data", ctypes.c_void_p * 8),
        ("head", ctypes.c_int64 * 8),
        ("token", ctypes.c_int64 * 8),
        *((name, ctypes.c_void_p) for name in ("lse", "nodes", "members", "bounds")),
        *(
            (name, ctypes.c_int64)
            for name in ("trees", "size", "tokens", "heads", "kv_heads", "dim", "window", "threads")
        ),
        ("scale", ctypes.c_float),
        ("cap", ctypes.c_float),
    ]


class Kernel:
    """The compiled library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Wrap a library. Raises OSError where its version differs, or this process may not use its instructions."""
        library.gym_kernel.restype = ctypes.c_char_p
        library.gym_attention.argtypes = [ctypes.c_void_p, ctypes.c_int]
        name: bytes | None = library.gym_kernel()
        if name is None or library.gym_row_bytes() != ctypes.sizeof(_Row):
            raise OSError("this library does not run here")
        self.name = name.decode()  #: the instructions it multiplies with
        self._call: Any = library.gym_attention

    def attend(self, query: Tensor, key: Tensor, value: Tensor, spans: Spans, rule: Scores) -> Tensor:
        """Attend within segments: `[1, heads, tokens, head_dim]`, as `query` is; keys and values may have fewer heads."""
        found: Tensor = _Fused.apply(self, query, key, value, spans, rule)
        return found

    def forward(self, given: Tensors, spans: Spans, scores: Scores) -> tuple[Tensor, Tensor]:
        """Return the output, in the memory layout `[1, tokens, heads, head_dim]`, and the log-sum-exp that `backward` needs."""
        _, heads, tokens, dim = given[0].shape
        lse = torch.empty(heads, tokens)
        if isinstance(given[0], FakeTensor):  # that of a plan: it counts the work of the operator, which gives the same
            return attention_operator.called(given, _with_data(spans, given[0]), scores), lse
        out = torch.empty(1, tokens, heads, dim, dtype=given[0].dtype).transpose(1, 2)
        self._run([*given, out], lse, spans, scores, gradient=False)
        return out, lse

    def backward(
        self, given: Tensors, out: Tensor, lse: Tensor, d_out: Tensor, spans: Spans, scores: Scores
    ) -> Tensors:
        """Return the gradients of queries, keys and values from `d_out`, that of the output."""
        if isinstance(d_out, FakeTensor):
            return attention_operator.pulled(d_out, given, _with_data(spans, d_out), scores)
        query, key, value = (torch.empty_like(part) for part in given)
        self._run([*given, out, d_out, query, key, value], lse, spans, scores, gradient=True)
        return query, key, value

    def _run(self, tensors: list[Tensor], lse: Tensor, spans: Spans, scores: Scores, gradient: bool) -> None:
        query, key, forest = tensors[0], tensors[1], spans.forest
        row = _Row(
            lse=lse.data_ptr(),
            nodes=forest.nodes.ctypes.data,
            members=forest.members.ctypes.data,
            bounds=forest.bounds.ctypes.data,
            trees=len(forest.bounds) - 1,
            size=forest.size,
            tokens=query.shape[2],
            heads=query.shape[1],
            kv_heads=key.shape[1],
            dim=query.shape[3],
            window=scores.window or 0,
            threads=torch.get_num_threads(),
            scale=scores.scale,
            cap=scores.softcap or 0,
        )
        for number, tensor in enumerate(tensors):
            row.data[number], row.head[number], row.token[number] = (
                tensor.data_ptr(),
                tensor.stride(1),
                tensor.stride(2),
            )
        if self._call(ctypes.addressof(row), gradient):
            raise GymError(f"no memory for the attention of a row of {query.shape[2]} tokens", key="train.batch_tokens")


class _Fused(torch.autograd.Function):
    """Calls the kernel, and saves queries, keys, values, output and log-sum-exp for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, spans: Spans, scores: Scores
    ) -> Tensor:
        given = _dense(query), _dense(key), _dense(value)
        out, lse = kernel.forward(given, spans, scores)
        ctx.save_for_backward(*given, out, lse)
        ctx.options = kernel, spans, scores
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        kernel, spans, scores = ctx.options
        found = kernel.backward((query, key, value), out, lse, _dense(gradient), spans, scores)
        return None, *found, None, None


def _dense(tensor: Tensor) -> Tensor:
    """Return it with the last dimension contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@cache
def kernel(dtype: torch.dtype) -> Kernel | None:
    """Return the kernel for a dtype, compiled for this machine; None where it cannot be compiled."""
    found = native_code.library(SOURCE, (*native_code.THIS_MACHINE, *FLAGS[dtype]))
    try:
        return Kernel(found) if found else None
    except OSError:
        return None


def functions() -> Sequence[KernelFunctions]:
    """Return the kernel functions of the engine: for a CPU, where it compiles, and for an accelerator."""
    own = [_functions(found, dtype) for dtype in FLAGS if (found := kernel(dtype))]
    return (*own, block_attention.functions())


def _with_data(spans: Spans, without: FakeTensor) -> Spans:
    """Return segments that say where they lie, also where an adapter made them among tensors `without` data that allow others."""
    if not without.fake_mode.allow_non_fake_inputs:
        return spans
    with unset_fake_temporarily():
        return Spans(spans.lengths, spans.prefixes)


@cache
def _functions(own: Kernel, dtype: torch.dtype) -> KernelFunctions:
    version = native_code.text(SOURCE).decode()
    able = frozenset({"cpu"}), frozenset({dtype})
    return KernelFunctions(own.name, version, *able, without_data=True, attention=own.attend)


def chosen(query: Tensor, key: Tensor, spans: Spans, rule: Scores, attend: Callable[..., Tensor]) -> Attention | None:
    """Return the function of the kernel that attends in a row, or None where torch does, which is `attend(query, key, value,
    spans, rule)`.
    """
    shape = query.shape[1], key.shape[1], query.shape[3]
    few = query.device.type == "cpu" and (len(spans.forest.bounds) - 1) * shape[1] < torch.get_num_threads()
    if CHOICES.always is None and few:
        return None  # one head of one segment is the work of one thread
    long = spans.forest.size >= LONG
    name = "x".join(map(str, shape)) + (" long" if long else "")
    name += f" {spelled(query.dtype)}"
    continued = any(before is not None for before in spans.prefixes)
    name += f" window {rule.window}" if rule.window else ""
    name += " cap" if rule.softcap else ""
    name += " continued" if continued else ""
    lengths = LENGTHS[long]
    row = Spans(lengths, (None, *([0] * (len(lengths) - 1)))) if continued else Spans(lengths)
    work = partial(_work, like=query, shape=shape, spans=row, rule=rule, attend=attend)
    return CHOICES.choose(lambda each: each.attention, name, (query, key), work)


def _work(
    own: Attention, like: Tensor, shape: tuple[int, int, int], spans: Spans, rule: Scores, attend: Callable[..., Tensor]
) -> Work:
    """Return what a trial of `(heads, key-value heads, head_dim)` compares: the kernel, torch in a dtype, and in float64."""
    heads, kv_heads, dim = shape
    tokens, rule = sum(spans.lengths), replace(rule, scale=dim**-0.5)
    draws = torch.Generator().manual_seed(0)
    wide = [torch.randn(1, tokens, count, dim, generator=draws) for count in (heads, kv_heads, kv_heads, heads)]
    *given, by_out = (part.to(like.device, like.dtype).transpose(1, 2) for part in wide)

    def mine(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        found = own(query, key, value, spans, rule)
        if found is None:
            raise GymError("it does not attend in such rows")
        return found

    def theirs(dtype: torch.dtype) -> Results:
        whole = partial(attend, spans=spans, rule=rule)
        return partial(with_gradients, whole, [part.to(dtype) for part in given], by_out)

    return partial(with_gradients, mine, given, by_out), theirs(like.dtype), theirs(torch.float64)


CHOICES = Choices(RECORD, functions)  #: of this process
