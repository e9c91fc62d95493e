"""Tiny random models of the architectures that packing must hold for. Windows are shorter than the samples."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}

CONFIGS: dict[str, PreTrainedConfig] = {
    "qwen3": Qwen3Config(**SHAPE, head_dim=8),
    "qwen3_moe": Qwen3MoeConfig(**SHAPE, **EXPERTS),
    "llama": LlamaConfig(**SHAPE),
    "mistral": MistralConfig(**SHAPE, sliding_window=7),
    "gemma2": Gemma2Config(**SHAPE, **MIXED, query_pre_attn_scalar=8),
    "gemma3": Gemma3TextConfig(**SHAPE, **MIXED, query_pre_attn_scalar=8),
    "phi": PhiConfig(**SHAPE),
    "phi3": Phi3Config(**SHAPE, sliding_window=7),
}


def build(name: str, attention: str = "eager") -> PreTrainedModel:
    """Return a model of this architecture with random weights, always the same ones."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation=attention)
    for weight in model.parameters():  # the usual initial weights are too small for any mistake to show
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.2)
    return model.eval()
