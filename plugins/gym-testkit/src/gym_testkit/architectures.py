"""Tiny random models of the architectures that packing, decoding and adapters must hold for. Windows are shorter than samples."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 50
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7, "query_pre_attn_scalar": 8}
#: what differs from SHAPE, and the model type where it is not the name
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen3 with windows": {"type": "qwen3", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3_moe": EXPERTS,
    "llama": {},
    "mistral": {"sliding_window": 7},
    "gemma2": MIXED,
    "gemma3_text": MIXED,
    "phi": {},
    "phi3": {"sliding_window": 7},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "num_key_value_heads": 4},
}

#: `config.json` of a Llama of 70B parameters, for what is computed without weights.
LLAMA_70B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}


def build(name: str, attention: str | None = "eager") -> PreTrainedModel:
    """Return a model with random weights, always the same ones; without `attention`, with what transformers chooses."""
    options = SHAPE | FAMILIES[name]
    config = AutoConfig.for_model(options.pop("type", name), **options)
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    for weight in model.parameters():  # the usual initial weights are too small for any mistake to show
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.2)
    return model.eval()


@cache
def ready(name: str) -> PreTrainedModel:
    """Return a model that the tests share and leave as it is."""
    return build(name, None)


def write_mixture(into: Path, like: Path) -> Path:
    """Write a mixture of experts of the shape of the model in `like`, with its tokenizer, and return the directory."""
    shutil.copytree(like, into)
    given = AutoConfig.from_pretrained(like).to_dict()
    config = AutoConfig.for_model(
        "qwen3_moe", **{key: given[key] for key in SHAPE if key != "intermediate_size"}, **EXPERTS
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(into)
    return into
