"""Attention in a packed row as a custom operator of torch, for layers that are compiled on a CPU.

A compiler would otherwise specialize the code to the segments of one row, and compile again for the next row. As one operator
with tensor arguments only (`Spans.table` has the segments), it serves rows of any segments. The kernel is chosen when it runs, as
without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from gym_torch.kernels.kernel_functions import Scores
from gym_torch.segment_spans import Spans

Tensors = tuple[Tensor, Tensor, Tensor]
Attend = Callable[[Tensor, Tensor, Tensor, Spans, Scores], Tensor]
Options = tuple[float, int | None, float | None]

_RULE = "Tensor spans, float scale, int? window, float? softcap"
LIBRARY = torch.library.Library("gym", "DEF")
LIBRARY.define(f"attend(Tensor query, Tensor key, Tensor value, {_RULE}) -> Tensor")
LIBRARY.define(
    f"attend_backward(Tensor by_out, Tensor query, Tensor key, Tensor value, {_RULE}) -> (Tensor, Tensor, Tensor)"
)


def attend(query: Tensor, key: Tensor, value: Tensor, spans: Spans, rule: Scores) -> Tensor:
    """Attend within the segments of a row, as the function given to `computes` does: `[1, heads, tokens, head_dim]`."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    return called((query.to(dtype), key.to(dtype), value.to(dtype)), spans, rule)


def called(given: Tensors, spans: Spans, rule: Scores) -> Tensor:
    """Call the operator; tensors without data, which no kernel takes, get its shapes."""
    out: Tensor = torch.ops.gym.attend(*given, spans.table, rule.scale, rule.window, rule.softcap)
    return out.transpose(1, 2)


def pulled(by_out: Tensor, given: Tensors, spans: Spans, rule: Scores) -> Tensors:
    """Return the gradients of what `called` was given, from that of its output."""
    found: Tensors = torch.ops.gym.attend_backward(by_out, *given, spans.table, rule.scale, rule.window, rule.softcap)
    return found


@cache
def computes(how: Callable[..., Tensor]) -> None:
    """Set the function that the operator calls."""

    def forward(query: Tensor, key: Tensor, value: Tensor, table: Tensor, *options: Any) -> Tensor:
        return how(query, key, value, _spans(table), Scores(*options)).transpose(1, 2).contiguous()

    def backward(by_out: Tensor, *given: Any) -> tuple[Tensor, ...]:
        leaves = [part.detach().requires_grad_() for part in given[:3]]
        with torch.enable_grad():
            out = forward(*leaves, *given[3:])
        found = torch.autograd.grad(out, leaves, by_out.to(out.dtype))
        return tuple(part.contiguous() for part in found)

    LIBRARY.impl("attend", forward, "CPU")
    LIBRARY.impl("attend_backward", backward, "CPU")


def _spans(table: Tensor) -> Spans:
    return _made(table.numpy().tobytes())


@lru_cache(maxsize=8)  # all layers ask for the same row, forward and backward
def _made(table: bytes) -> Spans:
    return Spans.of(torch.frombuffer(bytearray(table), dtype=torch.int64))


@torch.library.register_fake("gym::attend", lib=LIBRARY)
def _attended(query: Tensor, _key: Tensor, value: Tensor, *_options: Any) -> Tensor:
    rows, heads, tokens, _ = query.shape
    return query.new_empty(rows, tokens, heads, value.shape[-1])


@torch.library.register_fake("gym::attend_backward", lib=LIBRARY)
def _pulled(_by_out: Tensor, *given: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty(part.shape, dtype=part.dtype) for part in given[:3])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
    found = torch.ops.gym.attend_backward(by_out, *ctx.saved_tensors, *ctx.options)
    return (*found, None, None, None, None)


torch.library.register_autograd("gym::attend", _backward, setup_context=_keep, lib=LIBRARY)
