"""Attention in packed rows on an accelerator by FlexAttention of torch, which skips blocks that no query sees.

It supports segments, prefixes, windows and caps (arXiv:2412.05496). The kernel is compiled at the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from gym_torch.kernels.kernel_functions import KernelFunctions, Scores
from gym_torch.segment_spans import Spans

NAME = "flex_attention"  #: as transformers calls it


@cache
def functions(mode: str = "") -> KernelFunctions:
    """Return its kernel functions; `mode` is one of `torch.compile`, empty for the default."""

    def attention(query: Tensor, key: Tensor, value: Tensor, spans: Spans, scores: Scores) -> Tensor:
        return attend(query, key, value, spans, scores, _compiled(mode))

    devices, dtypes = {"cuda", "xpu"}, {torch.float32, torch.bfloat16, torch.float16}
    return KernelFunctions(
        f"{NAME} {mode}".strip(), torch.__version__, frozenset(devices), frozenset(dtypes), attention=attention
    )


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spans: Spans,
    scores: Scores,
    attention: Callable[..., Any] = flex_attention,
) -> Tensor:
    """Attend in one call over the whole row, see `KernelFunctions.attention`.

    Inside compiled code it becomes part of that code, for rows of any segments. Not compiled, it is for checks only: it then
    holds the scores of all pairs, and has no gradient on a CPU.
    """
    cap = scores.softcap

    def capped(score: Tensor, *_: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    found: Tensor = attention(
        query,
        key,
        value,
        score_mod=None if cap is None else capped,
        block_mask=spans.block_mask(scores.window, query.device),
        scale=scores.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return found


@cache
def _compiled(mode: str) -> Callable[..., Any]:
    """Return the function compiled for any length; a cap is a constant of the code, short rows use the kernel of long ones."""
    compiled = torch.compile(flex_attention, dynamic=True, mode=mode or None)

    def attention(*given: Any, **options: Any) -> Any:
        # Else a float is read from a tensor, which no kernel can.
        with torch._dynamo.config.patch(specialize_float=True):
            return compiled(*given, **options, kernel_options={"FORCE_USE_FLEX_ATTENTION": True})

    return attention
