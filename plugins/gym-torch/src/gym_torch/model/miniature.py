"""A model of the same family and the same options, so small that whatever depends on length can be tried out on it.

Widths and counts become small. What counts tokens (a window, a chunk, the positions of pretraining) becomes so small that a
trial of a few dozen tokens lies beyond it, or so large that it does not, where no sample of the run gets that far. Lists with one
entry a layer keep one layer of each kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from gym_torch.attention.segment_attention import NAME
from gym_torch.model.transformers_lock import TRANSFORMERS_LOCK

LONGEST = 41  #: tokens of the longest text of a trial, which lies beyond every threshold
NEAR = 13  #: positions of pretraining, where frequencies follow the length of a text
FAR = 256  #: tokens that no trial has
VOCABULARY = 64
LAYERS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks"),
    *("decoder_layers", "num_decoder_layers", "encoder_layers"),
)
HEADS = ["num_attention_heads", "n_head", "n_heads", "num_heads"]


def _all(size: int, names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), size)


#: Widths, and counts of parts, by the names that configurations have for them. What is smaller stays as it is.
_SIZES: dict[str, int] = {
    **_all(64, "hidden_size d_model n_embd dim attention_hidden_size embedding_size"),
    **_all(48, "intermediate_size ffn_hidden_size n_inner ffn_dim dim_ff dff decoder_ffn_dim encoder_ffn_dim d_inner"),
    **_all(64, "emb_dim embedding_dim"),
    **_all(
        32, "shared_intermediate_size moe_intermediate_size shared_expert_intermediate_size kv_lora_rank q_lora_rank"
    ),
    **_all(
        16,
        "head_dim v_head_dim qk_rope_head_dim qk_nope_head_dim index_head_dim linear_key_head_dim linear_value_head_dim d_kv",
    ),
    **_all(16, "d_head mamba_d_head mamba_headdim"),
    **_all(32, "qk_head_dim"),
    **_all(8, "rotary_dim hidden_size_per_layer_input mamba_d_state state_size"),
    **_all(4, "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads"),
    **_all(4, "num_experts num_local_experts n_routed_experts moe_num_experts linear_num_value_heads"),
    **_all(4, "mamba_n_heads n_mamba_heads"),
    **_all(2, "num_key_value_heads linear_num_key_heads num_experts_per_tok moe_topk num_experts_per_token moe_k"),
    **_all(2, "index_n_heads type_vocab_size attn_layer_period expert_layer_period full_attention_interval"),
    **_all(
        1,
        "n_group topk_group n_shared_experts num_shared_experts num_kv_shared_layers attn_layer_offset expert_layer_offset",
    ),
    **_all(1, "first_k_dense_replace mamba_n_groups n_groups moe_num_shared_experts expand mamba_expand"),
    **_all(64, "input_embedding_size output_embedding_size word_embed_proj_dim lru_width ple_embed_dim hc_lowrank"),
    **_all(48, "dense_intermediate_size intermediate_size_mlp feed_forward_size mamba_d_ssm"),
    **_all(
        32, "expert_ffn_hidden_size shared_experts_intermediate_size moe_shared_expert_intermediate_size o_lora_rank"
    ),
    **_all(16, "linear_head_dim mamba_head_dim attention_head_dim kv_channels swa_head_dim router_hidden_size"),
    **_all(8, "ssm_state_size laurel_rank gated_norm_rank zero_expert_num o_groups"),
    **_all(4, "linear_num_heads mamba_num_heads num_kv_heads attention_heads dim_head swa_num_attention_heads"),
    **_all(2, "max_window_layers num_layers_per_stack swa_num_key_value_heads num_expert_group"),
    **_all(
        VOCABULARY,
        "vocab_size ngram_vocab_size_base decoder_vocab_size encoder_hash_byte_group_vocab n_words vocab_size_per_layer_input",
    ),
}
#: What counts tokens: up to it a model may compute otherwise than beyond it.
_TOKENS: dict[str, int] = {
    **_all(7, "sliding_window window_size local_window_size attention_window_size sliding_window_size"),
    **_all(9, "attention_chunk_size chunk_size mamba_chunk_size"),
    **_all(5, "index_topk"),
    **_all(4, "index_block_size"),
    **_all(2, "index_topk_blocks"),
    **_all(NEAR, "original_max_position_embeddings"),
}
#: Words in the names of other options that count tokens, in families that nobody has thought of here.
_WORDS = ("window", "chunk", "block", "local", "distance", "extent", "floor", "budget")
_FEW = 8
#: Positions that bound a text; what is computed depends on them where frequencies follow the length of the text.
_BOUNDS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx", "model_max_length"),
    *("context_length", "max_target_positions", "max_source_positions"),
)
_BY_LENGTH = ("dynamic", "longrope")  #: ways to scale rotary positions that look at the length of a text
_DROPPED = (
    *("architectures", "dtype", "model_type", "transformers_version", "quantization_config", "auto_map"),
    *("id2label", "label2id"),
)


def by_length(options: Mapping[str, Any]) -> bool:
    """Whether a configuration has rotary frequencies that follow from the length of a text."""
    rope = options.get("rope_parameters") or {}
    kinds = [rope, *(each for each in rope.values() if isinstance(each, Mapping))]  # one for all layers, or one a kind
    return any(kind.get("rope_type") in _BY_LENGTH for kind in kinds)


def shrunk(config: PretrainedConfig, samples: int | None = None) -> PretrainedConfig:
    """Return the configuration of a miniature; `samples` are the tokens of the longest sample of a run, where that is known."""
    return type(config).from_dict(_shrunk(config.to_dict(), samples))


def likeness(model: PreTrainedModel, samples: int | None) -> tuple[object, ...]:
    """Return what the miniature of a model follows from, to remember by what was found on it."""
    try:
        config = shrunk(model.config, samples)
    except Exception:  # a configuration that cannot be made small: whoever builds the miniature says so
        config = model.config
    return type(model), config.to_json_string(use_diff=False), model.config._attn_implementation


def miniature(model: PreTrainedModel, samples: int | None = None) -> PreTrainedModel:
    """Return a small model of the class and with the options of another one, on the CPU in fp32, always the same.

    Raises whatever the family raises where it cannot be built so small.
    """
    config = shrunk(model.config, samples)
    own = model.config._attn_implementation  # what only an accelerator has attends alike
    attention = own if own in ("eager", "sdpa", NAME) else None
    with TRANSFORMERS_LOCK, torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        small: PreTrainedModel = type(model)._from_config(config, attn_implementation=attention)
        enlarge(small)
    return small.float().eval()


@torch.no_grad()
def enlarge(model: nn.Module) -> None:
    """Draw larger weights: the usual initial ones are too small for any mistake to show."""
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.2)


def _shrunk(options: Mapping[str, Any], samples: int | None) -> dict[str, Any]:
    """Make a configuration small; those within it too."""
    layers = next((options[name] for name in LAYERS if isinstance(options.get(name), int)), 0)
    kept = _kinds(options, layers)
    near = by_length(options)
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name in _DROPPED:
            continue
        if isinstance(value, Mapping) and _of_layers(value):
            own = {at: _of(value, layer) for at, layer in enumerate(kept)}
            found[name] = {str(at): _shrunk(each, samples) for at, each in own.items() if each}
        elif isinstance(value, Mapping):
            found[name] = _shrunk(value, samples)
        elif isinstance(value, list) and layers and len(value) == layers:
            found[name] = [value[layer] for layer in kept]
        elif not isinstance(value, int) or isinstance(value, bool):
            found[name] = value
        elif name in LAYERS:
            found[name] = len(kept) if value == layers else min(value, 2)
        elif name in _TOKENS or (near and name in _BOUNDS):
            found[name] = _TOKENS.get(name, NEAR) if samples is None or value < samples else FAR
        elif name in _BOUNDS:
            found[name] = FAR
        elif name not in _SIZES and any(word in name for word in _WORDS):
            found[name] = min(value, _FEW) if samples is None or value < samples else FAR
        elif name.endswith(("_token_id", "_token_index")):
            found[name] = value % VOCABULARY
        else:
            found[name] = min(value, _SIZES.get(name, value))
    heads = next((name for name in HEADS if isinstance(options.get(name), int)), "")
    if heads and options.get("num_key_value_heads") == options[heads]:
        found["num_key_value_heads"] = found[heads]
    return found | {
        name: _rotary(found[name], found) for name in ("rope_parameters", "rope_scaling") if found.get(name)
    }


def _of_layers(value: Mapping[Any, Any]) -> bool:
    """Whether a mapping is from numbers of layers to what differs in them."""
    return bool(value) and all(str(key).isdigit() for key in value)


def _of(table: Mapping[Any, Any], layer: int) -> Any:
    return next((value for key, value in table.items() if int(key) == layer), None)


def _rotary(rope: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Cut what a scaling of positions has for each frequency down to the frequencies of a small head."""
    width = options.get("head_dim") or 16
    half = int(width * (options.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 1)) // 2
    found: dict[str, Any] = {}
    for name, value in rope.items():
        if isinstance(value, Mapping):
            found[name] = _rotary(value, options)
        elif name in ("short_factor", "long_factor"):
            found[name] = value[:half]
        elif name == "mrope_section":
            found[name] = [part * half // sum(value) for part in value]
        else:
            found[name] = value
    return found


def _kinds(options: Mapping[str, Any], layers: int) -> list[int]:
    """Return the numbers of the layers to keep: the first of each kind, the last, and four where there are so many."""
    lists = [value for value in options.values() if isinstance(value, list) and len(value) == layers]
    tables = [value for value in options.values() if isinstance(value, Mapping) and _of_layers(value)]
    lists += [[_of(table, layer) for layer in range(layers)] for table in tables]
    seen = {str(kind): number for number, kind in reversed(list(enumerate(zip(*lists, strict=True))))}
    kept = {*seen.values(), *range(layers)[-1:]}
    more = [number for number in range(layers) if number not in kept]
    return sorted([*kept, *more[: max(0, 4 - len(kept))]])
