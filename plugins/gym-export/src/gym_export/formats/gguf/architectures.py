"""Which models llama.cpp computes as transformers does, and what a GGUF file says of each. Others are refused by name.

A row is here only where llama.cpp was asked and answered the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gym_core import GymError
from gym_torch.model.head_dim import head_dim

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Architecture:
    """How a family of transformers is called in GGUF, and what is done to its weights."""

    name: str
    interleaved: bool = False
    """Whether rotary pairs lie beside each other in GGUF, and not half a head apart: queries and keys are then permuted."""
    experts: bool = False
    """Whether it is a mixture of experts."""
    activations: tuple[str, ...] = ("silu",)


#: By `model_type`.
ARCHITECTURES = {
    "llama": Architecture("llama", interleaved=True),
    "mistral": Architecture("llama", interleaved=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen3_moe": Architecture("qwen3moe", experts=True),
}
#: Rotary scalings that llama.cpp computes as transformers does; `llama3` as factors of frequencies.
SCALINGS = ("default", "linear", "yarn", "llama3")
#: Of a scaling of type `yarn`, what has no place in the file, with the value under which it says nothing.
YARN_OTHERS: dict[str, tuple[Any, ...]] = {
    "truncate": (None, True),
    "mscale": (None,),
    "mscale_all_dim": (None,),
    "beta_fast": (None, 32),  # a file may say both, and llama.cpp reads neither for these families
    "beta_slow": (None, 1),
}


def architecture_of(config: Any, where: str) -> Architecture:
    """Return the row of a model. Raises GymError where llama.cpp does not compute what it does, or nobody has seen it do so."""
    if config.model_type not in ARCHITECTURES:
        raise refused(f"models of the family `{config.model_type}`", where, f"known: {', '.join(ARCHITECTURES)}")
    found = ARCHITECTURES[config.model_type]
    for reason in _reasons(config, found):
        raise refused(reason, where, "export with `safetensors`, and convert that with llama.cpp's own script")
    return found


def _reasons(config: Any, found: Architecture) -> Iterator[str]:
    if config.hidden_act not in found.activations:
        yield f"the activation `{config.hidden_act}`"
    sliding = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    if "sliding_attention" in kinds or (sliding and not kinds and sliding < config.max_position_embeddings):
        yield "attention in a sliding window"
    rope = config.rope_parameters
    if rope.get("rope_type", "default") not in SCALINGS:
        yield f"rotary scaling of type `{rope['rope_type']}`"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        yield "rotary positions on a part of each head"
    for key, values in YARN_OTHERS.items():
        if rope.get("rope_type") == "yarn" and rope.get(key) not in values:
            yield f"`{key}` of a rotary scaling"
    if getattr(config, "mlp_bias", False):
        yield "biases in feed-forward layers (`mlp_bias`)"
    if found.name != "llama" and getattr(config, "attention_bias", False):
        yield "biases in attention (`attention_bias`)"
    if found.experts and (config.decoder_sparse_step != 1 or config.mlp_only_layers):
        yield "mixtures with layers that have no experts"
    if found.experts and not config.norm_topk_prob:
        yield "mixtures that do not normalise the weights of experts (`norm_topk_prob: false`)"


def refused(what: str, where: str, fix: str) -> GymError:
    """Make the error of what cannot be written as GGUF."""
    return GymError(f"{what}: not supported for GGUF", where=where, key="export", fix=fix)


def permutation(found: Architecture, name: str, config: Any) -> Callable[[Array], Array]:
    """Return how the rows of a weight of this name (in transformers) lie in GGUF."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    part = next((part for part in heads if f".{part}." in name), None)
    if not found.interleaved or part is None:
        return lambda rows: rows
    count = heads[part]

    def permuted(rows: Array) -> Array:
        half = rows.shape[0] // count // 2
        return rows.reshape(count, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)

    return permuted


def restored(found: Architecture, name: str, config: Any) -> Callable[[Array], Array]:
    """Return what undoes `permutation`."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    part = next((part for part in heads if f".{part}." in name), None)
    if not found.interleaved or part is None:
        return lambda rows: rows
    count = heads[part]

    def back(rows: Array) -> Array:
        half = rows.shape[0] // count // 2
        return rows.reshape(count, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)

    return back


def describe(writer: Any, config: Any, found: Architecture) -> None:
    """Write what the file says of the shape of the model."""
    head = head_dim(config)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head)
    _rope(writer, config)
    if found.experts:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _rope(writer: Any, config: Any) -> None:
    import gguf

    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope.get("rope_type", "default")
    if kind not in ("linear", "yarn"):
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
    writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        window = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(window)
        if rope.get("attention_factor"):
            usual = 0.1 * np.log(rope["factor"]) + 1.0
            writer.add_rope_scaling_attn_factors(float(rope["attention_factor"] / usual))


def rope_factors(config: Any) -> Array | None:
    """Return by what a scaling of type `llama3` divides each frequency, as llama.cpp has it; None for any other."""
    rope = config.rope_parameters
    if rope.get("rope_type") != "llama3":
        return None
    head = head_dim(config)
    window = rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, head, 2) / head)
    smooth = np.clip((window / waves - low) / (high - low), 0.0, 1.0)
    factors: Array = (1.0 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    return factors
