"""Attention within segments of a packed row, and from a segment to its prefix.

Registered with transformers under `NAME`. A model set to it takes one more keyword argument in its forward pass, `spans`, with
`NO_MASK` for a mask; without `spans` it computes what `sdpa` does. A row is one call of a kernel where a trial finds one that is
faster (`gym_torch.attention.fused_attention`, `block_attention`, or one of a library). Otherwise each segment is a call of
torch's fused attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from gym_core import GymError
from gym_torch.attention import attention_operator, block_attention
from gym_torch.attention.context_parallel import ContextGroup
from gym_torch.attention.fused_attention import CHOICES, chosen
from gym_torch.kernels.kernel_functions import Scores
from gym_torch.segment_spans import Spans

NAME = "gym_segments"
Attend = Callable[[int, Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
Cached = Callable[[int, Tensor, Tensor, Tensor, Scores], Tensor]
NO_MASK = torch.empty(1, 1, 0, 0)  #: transformers hands masks of four dimensions on as they are


def segment_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    spans: Spans | None = None,
    context: ContextGroup | None = None,
    shared: Attend | None = None,
    cached: Cached | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend within segments; the signature is that of transformers' attention interface.

    Args:
        module: the attention layer.
        query: `[rows, heads, tokens, head_dim]`, with spans a single row.
        key: `[rows, key-value heads, tokens, head_dim]`.
        value: as `key`.
        attention_mask: what `sdpa` would be given; not looked at where there are spans.
        spans: the segments of the row.
        context: the processes that share the tokens of the row; None where all of them are here.
        shared: replaces this attention where rows share prompts; called with the number of the layer and the scale.
        cached: replaces this attention where cached rows have no padding; called with the number of the layer and the options
            of scores.
        scaling: factor on the scores; `head_dim ** -0.5` by default.
        dropout: probability of dropping a weight.
        sliding_window: most positions back that a token sees, itself included.
        softcap: largest absolute score (arXiv:2408.00118, section 2).
        others: further options of a family; with spans, an option that might change the result is an error.

    Returns:
        `[rows, tokens, heads, head_dim]`, and no weights.

    Raises:
        GymError: a family passes an option that is not supported here.

    """
    rule = Scores(scaling if scaling is not None else query.shape[-1] ** -0.5, sliding_window, softcap)
    if cached is not None:
        return cached(module.layer_idx, query, key, value, rule).transpose(1, 2), None
    if shared is not None:
        out = shared(module.layer_idx, query, key, value, attention_mask, rule.scale)
    elif spans is not None:
        unknown = [name for name, value in others.items() if value is not None and name not in _PASSING]
        if unknown:
            why = f"{type(module).__name__} hands `{unknown[0]}` to its attention, which is not known in packed rows"
            raise GymError(why, key="model.attention", fix="set `model: {attention: sdpa}`")
        given = query, key, value
        attend = partial(_in_row, spans=spans, rule=rule, dropout=dropout)
        out = attend(*given) if context is None else context.attend(given, sum(spans.lengths), attend)
    elif softcap is not None:
        seen = _triangle(query.shape[2], key.shape[2], None, query.device) if attention_mask is None else attention_mask
        out = _capped(query, key, value, seen, rule, dropout)
    else:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling)
    return out.transpose(1, 2).contiguous(), None


#: What families hand to every attention and none of them looks at.
_PASSING = frozenset(
    {
        "position_ids",
        "cache_position",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "virtual",
        "experts",
    }
)

AttentionInterface.register(NAME, segment_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def _in_row(query: Tensor, key: Tensor, value: Tensor, spans: Spans, rule: Scores, dropout: float = 0.0) -> Tensor:
    """Compute attention by the kernel chosen for rows, else segment by segment."""
    device = query.device.type
    if not dropout and torch.compiler.is_compiling():  # one graph, whatever the segments
        attend = attention_operator.attend if device == "cpu" else block_attention.attend
        return attend(query, key, value, spans, rule)
    alike = value.shape == key.shape  # latent attention has values of another size (arXiv:2405.04434, section 2.1)
    if alike and not dropout and CHOICES.any():
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
        given = query.to(dtype), key.to(dtype), value.to(dtype)
        own = chosen(given[0], given[1], spans, rule, piecewise)
        found = own(*given, spans, rule) if own else None
        if found is not None:
            return found
    return piecewise(query, key, value, spans, rule, dropout)


attention_operator.computes(_in_row)


def piecewise(query: Tensor, key: Tensor, value: Tensor, spans: Spans, rule: Scores, dropout: float = 0.0) -> Tensor:
    """Attend segment by segment."""
    # One `split` rather than a slice a segment: its backward joins the gradients once.
    queries, keys, values = (part.split(spans.lengths, dim=2) for part in (query, key, value))
    found = []
    for own, rows in enumerate(queries):
        seen = spans.lineage(own)
        known, content = (_join(parts, seen) for parts in (keys, values))
        length, total = rows.shape[2], known.shape[2]
        if rule.softcap is not None:
            found.append(
                _capped(rows, known, content, _triangle(length, total, rule.window, query.device), rule, dropout)
            )
            continue
        plain = total == length and (rule.window is None or total <= rule.window)
        mask = None if plain else _triangle(length, total, rule.window, query.device)
        found.append(
            scaled_dot_product_attention(
                rows, known, content, mask, dropout, is_causal=plain, scale=rule.scale, enable_gqa=True
            )
        )
    return torch.cat(found, dim=2)


def _join(parts: Sequence[Tensor], seen: list[int]) -> Tensor:
    return parts[seen[0]] if len(seen) == 1 else torch.cat([parts[number] for number in seen], dim=2)


def _triangle(length: int, total: int, window: int | None, device: torch.device) -> Tensor:
    """Return which of `total` tokens the last `length` of them see: `[length, total]`."""
    mask = torch.ones(length, total, dtype=torch.bool, device=device).tril(total - length)
    return mask if window is None else mask.triu(total - length - window + 1)


def _capped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, rule: Scores, dropout: float) -> Tensor:
    """Attend with capped scores, which no fused kernel of a CPU offers."""
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    scores = _cap(query @ key.transpose(2, 3) * rule.scale, rule.softcap)
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)  # finite, for padding may see nothing at all
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    return torch.dropout(weights, dropout, train=True) @ value


def _cap(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)
