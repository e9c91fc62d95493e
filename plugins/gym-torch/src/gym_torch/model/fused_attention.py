"""Attention within the segments of a packed row on a CPU, in bf16: one C call for a row forward, and one backward.

The backward pass of torch's fused attention takes ten times as long as its forward pass on segments of usual lengths. This
kernel (`fused_attention.c`) is taken where it is nearer to exact attention than torch's is, or as near, and faster, as a trial on
this machine finds for each shape of heads; the same numbers come out for a segment whatever lies beside it in the row.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gym_core import GymError, Run
from gym_torch import native_code
from gym_torch.model.precision_probe import milliseconds, remembered
from gym_torch.spans import Spans

SOURCE = Path(__file__).with_suffix(".c")
RECORD = "fused_attention"  #: in run.json: by shape of heads, the kernel that a run took, or ""
LONG = 640  #: tokens of the largest tree of segments from which on a row is tried as one of long segments
LENGTHS = {
    False: (150, 60, 33, 150, 400),
    True: (1500, 900),
}  #: tokens of the segments of a trial, by whether they are long
WORTH = 1.1  #: the kernel must be so many times as fast
CLOSE = 1.25  #: and its error at most so many times that of torch's

Tensors = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Scores:
    """How products of queries and keys become scores."""

    scale: float
    window: int | None = None  #: most positions back that a token sees, itself included
    softcap: float | None = None  #: largest absolute score


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
    """The compiled file."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Take a library. Raises OSError where it is of another version, or may not use what it was compiled for."""
        library.gym_kernel.restype = ctypes.c_char_p
        library.gym_attention.argtypes = [ctypes.c_void_p, ctypes.c_int]
        name: bytes | None = library.gym_kernel()
        if name is None or library.gym_row_bytes() != ctypes.sizeof(_Row):
            raise OSError("this library does not run here")
        self.name = name.decode()  #: the instructions it multiplies with
        self._call: Any = library.gym_attention

    def attend(self, query: Tensor, key: Tensor, value: Tensor, spans: Spans, scores: Scores) -> Tensor:
        """Attend within segments: `[1, heads, tokens, head_dim]` in bf16, as `query` is; keys and values may have fewer heads."""
        found: Tensor = _Fused.apply(self, query, key, value, spans, scores)
        return found

    def forward(self, given: Tensors, spans: Spans, scores: Scores) -> tuple[Tensor, Tensor]:
        """Return what attention gives, laid out as `[1, tokens, heads, head_dim]`, and what `backward` needs besides."""
        _, heads, tokens, dim = given[0].shape
        out = torch.empty(1, tokens, heads, dim, dtype=torch.bfloat16).transpose(1, 2)
        lse = torch.empty(heads, tokens)
        self._run([*given, out], lse, spans, scores, gradient=False)
        return out, lse

    def backward(
        self, given: Tensors, out: Tensor, lse: Tensor, d_out: Tensor, spans: Spans, scores: Scores
    ) -> Tensors:
        """Return the gradients of queries, keys and values, given that of `out`."""
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
    """Calls the kernel, and keeps queries, keys, values, what came out and the normalizer of each score for its gradient."""

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
    """Return it with the numbers of each head next to each other."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@cache
def kernel() -> Kernel | None:
    """Return the kernel compiled for this machine; None where there is none."""
    found = native_code.library(SOURCE, native_code.THIS_MACHINE)
    try:
        return Kernel(found) if found else None
    except OSError:
        return None


@dataclass(frozen=True)
class Trial:
    """What the trial of one shape of heads found: milliseconds forward and backward, and errors relative to float64."""

    kernel: str
    kernel_ms: float
    torch_ms: float
    kernel_error: float
    torch_error: float

    @property
    def pays(self) -> bool:
        """Return whether to take the kernel."""
        return self.torch_ms > WORTH * self.kernel_ms and self.kernel_error < CLOSE * self.torch_error


def trial(own: Kernel, shape: tuple[int, int, int], long: bool, attend: Callable[..., Tensor]) -> Trial:
    """Return the trial for `(heads, key-value heads, head_dim)` beside `attend(query, key, value, spans, scores)`, remembered."""
    what = json.dumps([own.name, *shape, long, SOURCE.read_text(encoding="utf-8")])
    return Trial(**remembered("attention", what, lambda: asdict(_measure(own, shape, LENGTHS[long], attend))))


def _measure(
    own: Kernel, shape: tuple[int, int, int], lengths: tuple[int, ...], attend: Callable[..., Tensor]
) -> Trial:
    heads, kv_heads, dim = shape
    spans, scores = Spans(lengths), Scores(dim**-0.5)
    draws = torch.Generator().manual_seed(0)
    wide = [torch.randn(1, sum(lengths), count, dim, generator=draws) for count in (heads, kv_heads, kv_heads, heads)]
    *given, d_out = (part.bfloat16().transpose(1, 2) for part in wide)

    def gradients(how: Callable[..., Tensor], dtype: torch.dtype) -> Tensor:
        leaves = [part.detach().to(dtype).requires_grad_() for part in given]
        with torch.autocast("cpu", enabled=False):
            found = torch.autograd.grad(how(*leaves, spans, scores), leaves, d_out.to(dtype))
        return torch.cat([part.flatten() for part in found])

    def error(how: Callable[..., Tensor]) -> float:
        return float((gradients(how, torch.bfloat16).double() - exact).norm() / exact.norm())

    exact = gradients(attend, torch.float64)
    mine, theirs = (milliseconds(partial(gradients, how, torch.bfloat16)) for how in (own.attend, attend))
    return Trial(own.name, mine, theirs, error(own.attend), error(attend))


class Choices:
    """Which kernel attends, by shape of heads: found when a shape is first met, and kept by a run to its end."""

    def __init__(self) -> None:
        """Begin without any."""
        self.always: bool | None = None  #: set to true or false, no trial is asked
        self._known: dict[str, str] = {}
        self._run: Run | None = None

    def keep(self, run: Run) -> None:
        """Write down for a run what is chosen, and have one that is resumed go on as it began."""
        self._run = run
        self._known = dict(run.record.read().get(RECORD, {})) if run.resuming else {}

    def of(self, query: Tensor, key: Tensor, spans: Spans, attend: Callable[..., Tensor]) -> Kernel | None:
        """Return the kernel that attends in a row, or None where torch does."""
        shape = query.shape[1], key.shape[1], query.shape[3]
        own = kernel()
        if own is None or self.always is not None:
            return own if self.always else None
        if (len(spans.forest.bounds) - 1) * shape[1] < torch.get_num_threads():
            return None  # one head of one segment is the work of one thread
        long = spans.forest.size >= LONG
        name = "x".join(map(str, shape)) + (" long" if long else "")
        if name not in self._known:
            with torch.enable_grad(), torch.random.fork_rng():
                self._known[name] = own.name if trial(own, shape, long, attend).pays else ""
            if self._run:
                self._run.record.update(**{RECORD: self._known})
        return own if self._known[name] == own.name else None


CHOICES = Choices()  #: of this process
