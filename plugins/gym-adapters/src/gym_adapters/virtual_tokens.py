"""What prompt tuning and prefix tuning have in common: keys and values that every token attends to, in every layer.

Ours and not peft's, which puts them into each row's inputs or cache, and so knows neither packed rows nor a cache whose rows
come and go. Here they are no part of either: attention joins them to the keys and values it is given. The virtual tokens of
prompt tuning attend to one another alone, so their keys and values are the same for every text, and are computed once a pass.
What is saved is peft's.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.masking_utils import sdpa_mask

from gym_adapters.config.base import VirtualTokenOptions
from gym_adapters.forward_hook_base import Handle, HookAdapter
from gym_adapters.switch_attention import attend_by, own_way, shape_of, tried
from gym_core import GymError
from gym_torch.attention.segment_attention import segment_attention
from gym_torch.model.adapted import Plain
from gym_torch.policy import evaluating
from gym_torch.segment_spans import Spans

NAME = "gym_virtual"
STATE = "prompt_embeddings"  #: what peft calls what is trained, in both methods
Pair = tuple[Tensor, Tensor]  #: keys and values of a layer, `[1, key-value heads, tokens, head_dim]`
Config = TypeVar("Config", bound=VirtualTokenOptions)


def virtual_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    virtual: list[Pair] | None = None,
    spans: Spans | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend to virtual tokens before everything else; the rest is `gym_torch.attention.segment_attention.segment_attention`.

    Args:
        module: the attention layer.
        query: `[rows, heads, tokens, head_dim]`.
        key: `[rows, key-value heads, seen, head_dim]`.
        value: as `key`.
        attention_mask: bool, which of `seen` each token sees, `[rows, 1, tokens, seen]`; None is causal.
        virtual: keys and values of each layer; None where there are none.
        spans: the segments of the row, where the virtual tokens are the first and all others continue it.
        options: what `segment_attention` takes.

    """
    if virtual is None:
        return segment_attention(module, query, key, value, attention_mask, spans=spans, **options)
    known, content = (part.to(key.dtype).expand(len(key), -1, -1, -1) for part in virtual[cast(int, module.layer_idx)])
    count, tokens, seen = known.shape[2], query.shape[2], key.shape[2]
    key, value = torch.cat([known, key], dim=2), torch.cat([content, value], dim=2)
    if spans is not None:  # virtual tokens ask for nothing, but a segment has as many queries as keys
        asked = torch.cat([query.new_zeros(1, query.shape[1], count, query.shape[3]), query], dim=2)
        out, _ = segment_attention(module, asked, key, value, None, spans=spans, **options)
        return out[:, count:], None
    if attention_mask is None:
        mask = torch.ones(1, 1, tokens, count + seen, dtype=torch.bool, device=key.device).tril(count + seen - tokens)
    else:
        mask = torch.nn.functional.pad(attention_mask, (count, 0), value=True)
    return segment_attention(module, query, key, value, mask, **options)


AttentionInterface.register(NAME, virtual_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


class VirtualTokenAdapter(HookAdapter[Config], Generic[Config]):
    """A model whose tokens attend to virtual ones too, and count their positions from those on, as peft has it."""

    @abstractmethod
    def keys_and_values(self) -> list[Pair]:
        """Return the keys and values of the virtual tokens in each layer."""

    @abstractmethod
    def start(self) -> Tensor:
        """Return the first values of what trains."""

    def add_parameters(self) -> None:
        """Register what trains, and have the model attend to it. Raises GymError where it attends in a way of its own."""
        model, config = self.model, self.model.config.get_text_config().to_dict()
        window = config.get("sliding_window") and config.get("use_sliding_window", True)
        if {*(config.get("layer_types") or ["sliding_attention" if window else "full_attention"])} != {
            "full_attention"
        }:
            raise GymError(
                f"{type(model).__name__} does not attend to all that stands before, so not to virtual tokens either",
                key="adapter",
                fix="set adapter: lora",
            )
        if attend_by(model, NAME) != model.config.get_text_config().num_hidden_layers:
            raise own_way(model)
        model.register_parameter(STATE, nn.Parameter(self.start().detach().float()))
        try:
            tried(model, virtual=self.keys_and_values())
        except RuntimeError:  # latent attention keeps something else than it attends to
            raise own_way(model) from None

    def register_hooks(self) -> list[Handle]:
        """Give the virtual tokens to every pass through the backbone."""
        return [self.model.base_model.register_forward_pre_hook(self._enter, with_kwargs=True)]

    def _enter(self, backbone: nn.Module, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        positions, spans, count = options.get("position_ids"), options.get("spans"), self.config.num_virtual_tokens
        if positions is None:
            cache = options.get("past_key_values")
            seen = cache.get_seq_length() if cache is not None else 0
            positions = torch.arange(seen, seen + shape_of(args, options)[1], device=self.model.device)[None]
        if spans is not None:
            prefixes = [0 if before is None else before + 1 for before in spans.prefixes]
            spans = Spans((count, *spans.lengths), (None, *prefixes))
        return args, {
            **options,
            "position_ids": positions + count,
            "virtual": self.keys_and_values(),
            **({} if spans is None else {"spans": spans}),
        }

    def merged_weights(self) -> Plain:
        """Raise GymError: no weights compute what virtual tokens do."""
        raise GymError(
            "virtual tokens cannot be merged into the weights of a model",
            key="adapter",
            fix="load the adapter with peft beside its base, or train `adapter: lora`",
        )

    def describe(self) -> str:
        """Return the number of virtual tokens."""
        return f"{self.config.num_virtual_tokens} virtual tokens"

    def state(self) -> dict[str, Tensor]:
        """Return what trains, by peft's name."""
        return {STATE: self.model.get_parameter(STATE).detach()}

    def _shape(self) -> dict[str, Any]:
        """Return what peft's configuration of both methods holds."""
        return {
            "num_virtual_tokens": self.config.num_virtual_tokens,
            "num_transformer_submodules": 1,
            "task_type": "CAUSAL_LM",
        }

    def _drawn(self) -> Tensor:
        """Return the embeddings of tokens drawn from the vocabulary, `[tokens, dim]`."""
        embedding = self.model.get_input_embeddings()
        ids = torch.randint(embedding.num_embeddings, (self.config.num_virtual_tokens,))
        return embedding(ids.to(embedding.weight.device)).detach()

    def _compute(self, embeddings: Tensor) -> list[Pair]:
        """Return what the model itself computes for embeddings `[tokens, dim]`; its hooks are not asked."""
        backbone, cache = self.model.base_model, DynamicCache()
        embeddings = embeddings.to(self.model.get_input_embeddings().weight.dtype)
        with evaluating(backbone):  # checkpointed layers would keep nothing in a cache
            said = backbone.forward(inputs_embeds=embeddings[None], past_key_values=cache, use_cache=True)
        *below, (keys, values) = [(layer.keys, layer.values) for layer in cache.layers]
        # A layer that lies in shards has weights in the backward pass from where its output is asked for, as it is but here.
        asked = 0 * said.last_hidden_state.mean()
        return [*below, (keys + asked.to(keys.dtype), values + asked.to(values.dtype))]
