"""Recipes for tests of plans: small models whose layers are alike, or of two kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from gym_core import Recipe, load_recipe

CPU = torch.device("cpu")
QWEN: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
    "tie_word_embeddings": True,
}
#: layers of two kinds in turn, and one left over
WINDOWS = QWEN | {
    "num_hidden_layers": 9,
    "use_sliding_window": True,
    "sliding_window": 32,
    "layer_types": (["sliding_attention", "full_attention"] * 5)[:9],
}
#: two layers of another kind before those that repeat
EXPERTS = QWEN | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 8,
    "mlp_only_layers": [0, 1],
}


def recipe_of(folder: Path, config: dict[str, Any], adapter: str = "full", **options: Any) -> Recipe:
    (folder / "config.json").write_text(json.dumps(config))
    model = {"path": str(folder), "init": "random"}
    sections = {"data": "none.jsonl", "algorithm": "sft", "adapter": adapter}
    return load_recipe({"model": model, **sections, "train": {"precision": "fp32", **options}})
