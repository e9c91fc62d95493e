"""Prompts that several rows continue: keys and values are kept once, and read once for all rows of a prompt.

A decoding step reads the whole cache, so a copy of a long prompt for every completion costs more time than the layers do.
Attention to the prompt and to a row's own tokens are two calls, merged by their log-sum-exp as in FlashAttention
(arXiv:2205.14135, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel

from gym_torch.attention.segment_attention import NAME

LEAST = 64  #: mean length in tokens from which two calls cost less than the copies

#: options of models that attend in other ways
_OTHERWISE = ("sliding_window", "attn_logit_softcapping", "v_head_dim")

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class SharedPrompts:
    """Keys and values of prompts, and which rows continue which prompt."""

    def __init__(self) -> None:
        """Start without prompts."""
        self.rows: list[int] = []  #: number of the prompt of each row
        self._lengths: list[int] = []
        self._layers: list[tuple[Tensor, Tensor]] = []  #: keys and values `[prompts, heads, width, head_dim]`
        #: `[prompts, 1, 1, width]`, what is added to scores; None where nothing is padded.
        self._mask: Tensor | None = None
        self._table = self._places = torch.empty(0, dtype=torch.long)

    def take(self, cache: DynamicCache, lengths: Sequence[int], rows: Sequence[int]) -> None:
        """Take prompts from a cache, aligned at the right, and add a row for each entry of `rows`, the number of its prompt."""
        new = [(layer.keys, layer.values) for layer in cache.layers]
        if self._layers:
            new = [(_below(a, c), _below(b, d)) for (a, b), (c, d) in zip(self._layers, new, strict=True)]
        self._layers = new
        self.rows += [len(self._lengths) + row for row in rows]
        self._lengths += lengths
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[:, :, :0], layer.values[:, :, :0]
        self._arrange()

    def keep(self, rows: Sequence[int]) -> None:
        """Keep the rows `rows`, in this order, and drop the prompts that no row continues."""
        self.rows = [self.rows[row] for row in rows]
        left = sorted(set(self.rows))
        if len(left) < len(self._lengths):
            self._layers = [(keys[left], values[left]) for keys, values in self._layers]
            self._lengths = [self._lengths[number] for number in left]
            numbers = {number: at for at, number in enumerate(left)}
            self.rows = [numbers[number] for number in self.rows]
        self._arrange()

    def starts(self) -> list[int]:
        """Return the length of the prompt of each row."""
        return [self._lengths[number] for number in self.rows]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
    ) -> Tensor:
        """Attend to the prompt and to the row's own tokens.

        Args:
            layer: number of the layer.
            query: `[rows, heads, 1, head_dim]`.
            key: of the own tokens, `[rows, key-value heads, width, head_dim]`.
            value: as `key`.
            mask: bool, which of them are seen, `[rows, 1, 1, width]`; None for all.
            scale: factor on the scores.

        Returns:
            `[rows, heads, 1, head_dim]`.

        """
        keys, values = self._layers[layer]
        heads, dim = keys.shape[1], keys.shape[3]
        packed = query.view(len(query), heads, -1, dim)  # the heads that share keys become rows of one product
        added = None if mask is None else torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)
        own, own_sum = _flash(packed, key, value, attn_mask=added, scale=scale)
        asked = packed[self._table].transpose(1, 2).flatten(2, 3)  # [prompts, heads, most rows * sharing heads, dim]
        seen, seen_sum = _flash(asked, keys, values, attn_mask=self._mask, scale=scale)
        split = (-1, packed.shape[2])
        seen = seen.unflatten(2, split).transpose(1, 2).flatten(0, 1)[self._places]
        seen_sum = seen_sum.unflatten(2, split).transpose(1, 2).flatten(0, 1)[self._places]
        share = torch.sigmoid(seen_sum - own_sum)[..., None].to(own.dtype)
        return torch.lerp(own, seen, share).view_as(query)

    def _arrange(self) -> None:
        """Order the rows by prompt, and note the place of each row."""
        members: list[list[int]] = [[] for _ in self._lengths]
        places = []
        for row, number in enumerate(self.rows):
            places.append((number, len(members[number])))
            members[number].append(row)
        most = max(map(len, members), default=0)
        self._table = torch.tensor([each + [0] * (most - len(each)) for each in members], dtype=torch.long)
        self._places = torch.tensor([number * most + at for number, at in places], dtype=torch.long)
        width = max(self._lengths, default=0)
        self._layers = [(keys[:, :, -width:], values[:, :, -width:]) for keys, values in self._layers]
        short = torch.tensor([width - length for length in self._lengths])[:, None] > torch.arange(width)
        kind = self._layers[0][0].dtype
        self._mask = torch.zeros(short.shape, dtype=kind).masked_fill(short, -torch.inf)[:, None, None]
        if not short.any():
            self._mask = None


def shares(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> bool:
    """Whether to keep prompts once: most stand there more than once, they are long, and the model allows it.

    It must attend to everything before, through `gym_torch.attention.segment_attention`, on a CPU,
    with keys and values of one size.
    """
    chosen = model.config._attn_implementation == NAME and model.device.type == "cpu"
    distinct = {tuple(prompt) for prompt in prompts}
    worth = 2 * len(distinct) <= len(prompts) and sum(map(len, distinct)) >= LEAST * len(distinct)
    return chosen and attends_to_all(model) and bool(prompts) and worth


def attends_to_all(model: PreTrainedModel) -> bool:
    """Whether a token of a model sees all before it, in all layers, with keys and values of one size and scores as they are."""
    options = model.config.get_text_config().to_dict()
    return set(options.get("layer_types") or ()) <= {"full_attention"} and not any(map(options.get, _OTHERWISE))


def _below(above: Tensor, below: Tensor) -> Tensor:
    """Join two tensors `[n, heads, width, head_dim]`, the narrower one padded on the left."""
    width = max(above.shape[2], below.shape[2])
    return torch.cat([pad(each, (0, 0, width - each.shape[2], 0)) for each in (above, below)])
