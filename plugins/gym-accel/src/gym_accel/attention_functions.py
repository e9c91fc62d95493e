"""Attention of packed rows by FlashAttention and FlexAttention.

FlashAttention takes segments of different lengths one after another: queries `[tokens, heads, dim]`, keys and values
`[tokens, key-value heads, dim]`, and where each segment begins. Causal attention is aligned at the right: the last query of a
segment sees all of its keys. So a segment that continues others is given the keys of these and its own.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from gym_accel import FlashAttention, FlexAttention, VarlenAttention
from gym_torch.attention import block_attention
from gym_torch.kernels.kernel_functions import KernelFunctions, Scores
from gym_torch.segment_spans import Bounds, Spans

SHARES = "enable_gqa" in signature(varlen_attn).parameters  #: whether heads of queries may share one of keys and values
WIDEST = 256  #: numbers of a head that FlashAttention takes
HALF = frozenset({torch.float16, torch.bfloat16})
CUDA = frozenset({"cuda"})
Rows = Callable[[Tensor, Tensor, Tensor, Bounds, Scores], Tensor]


def flex(config: FlexAttention) -> KernelFunctions:
    """Return FlexAttention, tuned as asked."""
    return block_attention.functions(config.mode)


def flash(config: FlashAttention) -> KernelFunctions:
    """Return the attention of a package of FlashAttention."""
    module = import_module(config.package)
    own = _version(config.distribution)
    rows = flash_rows(module.flash_attn_varlen_func, config.deterministic)
    name = f"{config.distribution} {own}" + ("" if config.deterministic else " in any order")
    return KernelFunctions(name, own, CUDA, HALF, attention=by_rows(rows, caps=True))


def varlen(config: VarlenAttention) -> KernelFunctions:
    """Return the FlashAttention of torch."""
    name = f"varlen_attn {torch.__version__}"
    return KernelFunctions(name, torch.__version__, CUDA, HALF, attention=by_rows(varlen_rows, caps=False))


def by_rows(rows: Rows, caps: bool) -> Callable[[Tensor, Tensor, Tensor, Spans, Scores], Tensor | None]:
    """Return what `KernelFunctions.attention` promises, by a function that takes segments of different lengths.

    `caps` says whether it can cap scores.
    """

    def attention(query: Tensor, key: Tensor, value: Tensor, spans: Spans, scores: Scores) -> Tensor | None:
        if (scores.softcap and not caps) or query.shape[-1] > WIDEST:
            return None
        bounds = spans.bounds(query.device)
        turned, known, content = (part[0].transpose(0, 1) for part in (query, key, value))
        if bounds.order:  # joined by `cat`, whose gradient adds in one order
            known, content = (_joined(part, spans, bounds) for part in (known, content))
        return rows(turned, known, content, bounds, scores).transpose(0, 1)[None]

    return attention


def _joined(part: Tensor, spans: Spans, bounds: Bounds) -> Tensor:
    parts = part.split(spans.lengths)
    return torch.cat([parts[number] for number in bounds.order])


def flash_rows(function: Callable[..., Any], deterministic: bool) -> Rows:
    """Return `flash_attn_varlen_func` of FlashAttention-2 or 3, which name what is given alike."""

    def rows(query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, scores: Scores) -> Tensor:
        found = function(
            query,
            key,
            value,
            cu_seqlens_q=bounds.queries,
            cu_seqlens_k=bounds.keys,
            max_seqlen_q=bounds.most_queries,
            max_seqlen_k=bounds.most_keys,
            softmax_scale=scores.scale,
            causal=True,
            window_size=_window(scores),
            softcap=scores.softcap or 0.0,
            deterministic=deterministic,
        )
        out: Tensor = found[0] if type(found) is tuple else found  # early versions of 3 give the normalizers too
        return out

    return rows


def varlen_rows(query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, scores: Scores) -> Tensor:
    """Return `torch.nn.attention.varlen.varlen_attn`; its window says too that attention is causal.

    Before torch 2.12 it takes as many heads of keys and values as of queries.
    """
    shared: dict[str, Any] = {"enable_gqa": query.shape[1] != key.shape[1]}
    if not SHARES:
        key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], 1) for part in (key, value))
        shared = {}
    found = varlen_attn(
        query,
        key,
        value,
        bounds.queries,
        bounds.keys,
        bounds.most_queries,
        bounds.most_keys,
        scale=scores.scale,
        window_size=_window(scores),
        **shared,
    )
    assert not isinstance(found, tuple)  # no normalizers were asked for
    return found


def _window(scores: Scores) -> tuple[int, int]:
    """Return how many keys before its own position a query sees, -1 for all, and after it."""
    return (scores.window - 1 if scores.window else -1), 0


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "of unknown version"
