"""A model as a graph takes it: tokens, a mask, positions and a cache as tensors in, logits and the cache as tensors out.

This is what ONNX, TorchScript, ExecuTorch and OpenVINO are made of; no class of transformers is left in it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

from gym_core import GymError
from gym_export.format import Format, Loaded, Logits
from gym_export.formats.safetensors import encoded
from gym_export.source import Prompt, Source
from gym_torch.model.adapted import assembled
from gym_torch.model.head_dim import head_dim
from gym_torch.model.tasks import built

EXPERTS = "batched_mm"  #: how a graph computes experts: a fixed number of products, whatever the router says


def inputs(config: PretrainedConfig) -> list[str]:
    """Return the names of what a graph takes."""
    caches = [
        f"past_key_values.{layer}.{part}" for layer in range(config.num_hidden_layers) for part in ("key", "value")
    ]
    return ["input_ids", "attention_mask", "position_ids", *caches]


def outputs(config: PretrainedConfig) -> list[str]:
    """Return the names of what it gives."""
    return ["logits", *(name.replace("past_key_values", "present") for name in inputs(config)[3:])]


def check(source: Source, format: str) -> None:
    """Raise GymError where a model is none that this mask is right for, or has no cache of keys and values alone."""
    config = source.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    sliding = getattr(config, "sliding_window", None) if not getattr(config, "layer_types", None) else None
    rope = getattr(config, "rope_parameters", None) or {}
    reasons = {
        f"layers of the kind {', '.join(sorted(kinds - {'full_attention'}))}": kinds != {"full_attention"},
        "attention in a sliding window": bool(sliding) and sliding < config.max_position_embeddings,
        "a model that is no decoder": bool(getattr(source.model.config, "is_encoder_decoder", False)),
        "a model without keys and values by head": getattr(config, "num_key_value_heads", None) is None,
        f"rotary scaling of type `{rope.get('rope_type')}`, which looks at the length": rope.get("rope_type")
        in ("dynamic", "longrope"),
    }
    for reason, holds in reasons.items():
        if holds:
            why = f"{reason}: not supported for {format}"
            raise GymError(why, where=str(source.artifact.path), key="export", fix="export with `safetensors`")


class GraphFormat(Format):
    """Base of the formats that are made of it."""

    def left_out(self, source: Source) -> str:
        """Return the parts of a model that read more than text."""
        whole = source.model.config
        return (
            ""
            if whole is source.config
            else f"what {whole.model_type} has beside its language model: it takes text alone"
        )


class Cached(nn.Module):
    """A causal language model over tensors alone."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Wrap a model in fp32."""
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *cache: Tensor
    ) -> tuple[Tensor, ...]:
        """Return logits `[b, n, vocabulary]` and the cache with these tokens.

        Args:
            input_ids: `[b, n]`.
            attention_mask: `[b, past + n]`, 1 where there is a token.
            position_ids: `[b, n]`.
            cache: keys and values of each layer, `[b, heads, past, head]`.

        """
        past = cache[0].shape[2]
        length = attention_mask.shape[1]
        there = attention_mask[:, None, None, :].to(torch.bool)
        rows = torch.arange(length, device=input_ids.device)[past:]
        allowed = torch.arange(length, device=input_ids.device)[None, :] <= rows[:, None]
        mask = torch.where(there & allowed[None, None], 0.0, torch.finfo(torch.float32).min)
        layers = DynamicCache([(key, value) for key, value in zip(cache[::2], cache[1::2], strict=True)])
        found = self.model(
            input_ids=input_ids, attention_mask=mask, position_ids=position_ids, past_key_values=layers, use_cache=True
        )
        kept = [part for layer in found.past_key_values.layers for part in (layer.keys, layer.values)]
        return (found.logits, *kept)


def wrapped(source: Source) -> Cached:
    """Return the model of a source, merged, in fp32, ready to be traced."""
    plain = source.merged(torch.float32)
    config = plain.config
    model = assembled(plain, built(config, source.task)).float()  # type: ignore[arg-type]
    model.set_attn_implementation("eager")
    if any(getattr(config.get_text_config(), key, None) for key in ("num_experts", "num_local_experts")):
        model.set_experts_implementation(EXPERTS)
    return Cached(model.eval())


def empty_cache(config: PretrainedConfig, batch: int, past: int) -> list[Tensor]:
    """Return a cache of so many tokens, all zero."""
    shape = (batch, config.num_key_value_heads, past, head_dim(config))
    return [torch.zeros(shape) for _ in range(2 * config.num_hidden_layers)]


def example(config: PretrainedConfig) -> tuple[Tensor, ...]:
    """Return what a graph is traced with: two rows of three tokens behind five."""
    torch.manual_seed(0)
    tokens = torch.randint(0, config.vocab_size, (2, 3))
    cache = [torch.randn_like(part) for part in empty_cache(config, 2, 5)]
    return (tokens, torch.ones(2, 8, dtype=torch.int64), torch.arange(5, 8).repeat(2, 1), *cache)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep back what tracing says of numbers that are the same in every graph of a model."""
    import logging
    import warnings

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class CachedLoaded(Loaded):
    """A graph in its runtime, asked through its cache. A subclass says how it is run."""

    def __init__(self, config: PretrainedConfig, tokenizer: Any) -> None:
        """Keep what shapes the cache."""
        self.config, self.tokenizer = config, tokenizer

    @abstractmethod
    def run(self, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Return the outputs for the inputs, in their order."""

    def step(self, tokens: Sequence[int], cache: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Return logits and the cache with further tokens."""
        past = cache[0].shape[2]
        ids = np.array([list(tokens)], dtype=np.int64)
        mask = np.ones((1, past + len(tokens)), dtype=np.int64)
        places = np.arange(past, past + len(tokens), dtype=np.int64)[None]
        return self.run([ids, mask, places, *cache])

    def begin(self) -> list[np.ndarray[Any, Any]]:
        """Return a cache of nothing."""
        return [part.numpy() for part in empty_cache(self.config, 1, 0)]

    def logits(self, tokens: Sequence[int]) -> Logits:
        """Return what it answers, the second half of the tokens behind the cache of the first."""
        half = len(tokens) // 2
        first = self.step(tokens[:half], self.begin()) if half else [np.zeros((1, 0, 0)), *self.begin()]
        second = self.step(tokens[half:], first[1:])
        found = np.concatenate([first[0], second[0]], axis=1) if half else second[0]
        return np.asarray(found[0], dtype=np.float32)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """Write on, a token a step, behind the cache."""
        found, given, cache = list[int](), list(tokens), self.begin()
        for _ in range(count):
            logits, *cache = self.step(given, cache)
            given = [int(logits[0, -1].argmax())]
            found += given
        return found

    def encode(self, prompt: Prompt) -> list[int] | None:
        """Return a prompt as the tokenizer beside it has it."""
        return encoded(self.tokenizer, prompt)


def beside(source: Source, into: Any) -> None:
    """Write configuration and tokenizer beside a graph."""
    source.whole.plain().config.save_pretrained(into)
    source.carry_tokenizer(into)
