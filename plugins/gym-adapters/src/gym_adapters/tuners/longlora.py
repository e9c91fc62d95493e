"""LongLoRA: LoRA with shifted sparse attention in training, so that long texts cost what short ones do.

Attention only. The longer context itself is the model's affair: its RoPE is scaled by an option of the model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from gym_adapters.config.base import split
from gym_adapters.config.longlora import LongLoRA
from gym_adapters.switch_attention import attend_by, shape_of
from gym_adapters.target_modules import norm_names
from gym_adapters.tuners.lora import LoraAdapter
from gym_core import GymError
from gym_torch.attention.segment_attention import segment_attention
from gym_torch.model.adapted import Plain
from gym_torch.segment_spans import Spans

NAME = "gym_shifted"


class LongLoraAdapter(LoraAdapter[LongLoRA]):
    """LoRA, embeddings and norms, with attention in groups while it trains and over everything else at all other times.

    Groups lie within a sample (arXiv:2309.12307, section 3.2): half of the heads attend in its equal parts, the other half in
    parts that begin half a part later. In the reference the last half part wraps around to the first tokens, which thereby see
    the end of the text; here it is a group by itself. In padded rows the padding counts as text.
    """

    def __init__(self, config: LongLoRA, model: PreTrainedModel, seed: int = 0) -> None:
        """Put LoRA and the attention in. Raises what LoRA raises."""
        if split(config.modules_to_save) == ("all",):
            embedding = model.get_input_embeddings()
            name = next(name for name, module in model.named_modules() if module is embedding)
            extra = (name.rpartition(".")[2], *norm_names(model))
            config = config.model_copy(update={"modules_to_save": extra})
        own = model.config._attn_implementation
        attend_by(model, NAME)  # which runs the model, as it was loaded
        super().__init__(config, model, seed)
        self._groups, self._own = config.groups, own
        self.model.base_model.register_forward_pre_hook(self._enter, with_kwargs=True)

    def low_rank(self) -> None:
        """Return None: attention is another one while it trains."""

    def merged_weights(self) -> Plain:
        """Return the model with everything in its weights, which attends to all of a text at all times."""
        plain = super().merged_weights()
        plain.config._attn_implementation = self._own
        return plain

    def _enter(self, backbone: nn.Module, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if not backbone.training:
            return args, options
        spans, mask = options.get("spans"), options.get("attention_mask")
        if spans is None:
            rows, length = shape_of(args, options)
            spans = Spans([length] * rows)
        if any(before is not None for before in spans.prefixes):
            why, fix = "samples that share a prompt have no groups of their own", "set adapter: lora"
            raise GymError(why, key="adapter", fix=f"{fix}, or train with an algorithm of single texts, such as sft")
        if mask is not None and mask.dim() == 2 and not bool(mask.all()):
            why, fix = "shifted attention takes no padding mask", "pack the samples, or set adapter: lora"
            raise GymError(why, key="adapter", fix=fix)
        return args, {**options, "shifted": grouped(spans, self._groups)}


def grouped(spans: Spans, groups: int) -> tuple[Spans, Spans]:
    """Return the groups of both halves of the heads: equal parts of each segment, and parts that begin half a part later."""
    plain: list[int] = []
    later: list[int] = []
    for length in spans.lengths:
        size = -(-length // groups)
        half = size // 2
        plain += _parts(length, size)
        later += [half, *_parts(length - half, size)] if half and size < length else _parts(length, size)
    return Spans(plain), Spans(later)


def _parts(length: int, size: int) -> list[int]:
    """Return the lengths of parts of one size, the last of which may be shorter."""
    return [min(size, length - start) for start in range(0, length, size)]


def shifted_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    shifted: tuple[Spans, Spans] | None = None,
    spans: Spans | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend in groups, half of the heads in those of `shifted[1]`; without them, as `segment_attention` does.

    Args:
        module: the attention layer.
        query: `[rows, heads, tokens, head_dim]`.
        key: `[rows, key-value heads, tokens, head_dim]`.
        value: as `key`.
        attention_mask: not looked at where there are groups.
        shifted: groups of the tokens of all rows, one after another, for both halves of the heads.
        spans: the segments of the row.
        options: what `segment_attention` takes.

    """
    if shifted is None:
        return segment_attention(module, query, key, value, attention_mask, spans=spans, **options)
    rows, heads, tokens, _ = query.shape
    # The groups of all rows are segments of one, as those of a packed row are.
    query, key, value = (part.transpose(0, 1).flatten(1, 2)[None] for part in (query, key, value))
    if key.shape[1] % 2 or heads % 2:  # then the halves share keys
        key, value = (part.repeat_interleave(heads // part.shape[1], dim=1) for part in (key, value))
    middle, shared = heads // 2, key.shape[1] * (heads // 2) // heads
    halves = [
        segment_attention(module, *part, None, spans=spans_of, **options)[0]
        for part, spans_of in zip(
            (
                (query[:, :middle], key[:, :shared], value[:, :shared]),
                (query[:, middle:], key[:, shared:], value[:, shared:]),
            ),
            shifted,
            strict=True,
        )
    ]
    joined = torch.cat(halves, dim=2)  # [1, rows * tokens, heads, head_dim]
    return joined.unflatten(1, (rows, tokens))[0], None


AttentionInterface.register(NAME, shifted_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
