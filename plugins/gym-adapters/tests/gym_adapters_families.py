"""Tiny random models of several architectures, with weights large enough for mistakes to show."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_torch.batch import Piece

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
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7, "query_pre_attn_scalar": 8}
#: those that attend to everything before, and what differs from SHAPE
FULL: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "llama": {},
    "gemma": {},
    "phi": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "num_key_value_heads": 4},
}
#: those with windows
WINDOWED: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 7},
    "gemma2": MIXED,
    "gemma3_text": MIXED,
    "phi3": {"sliding_window": 7},
}
ALL = FULL | WINDOWED


def family(name: str, **options: Any) -> PreTrainedModel:
    """Return a model of this architecture, always the same one."""
    config = AutoConfig.for_model(name, **(SHAPE | ALL[name] | options))
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.2)
    return model.eval()


def samples(lengths: tuple[int, ...] = (13, 1, 4, 25, 9), share: float = 0.6) -> list[Piece]:
    """Return random texts of these lengths, of which a share is trained."""
    random = np.random.default_rng(0)
    return [
        Piece(
            f"s{number}",
            random.integers(3, VOCABULARY, length).astype(np.int32),
            random.random(length) < share,
        )
        for number, length in enumerate(lengths)
    ]
