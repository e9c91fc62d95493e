"""What adapters meet: models of several architectures, those with windows apart, and texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_testkit.architectures import FAMILIES, SHAPE, VOCABULARY, build
from gym_torch.batch import Piece

WINDOWED = [name for name, options in FAMILIES.items() if "sliding_window" in options]
FULL = [name for name in FAMILIES if name not in WINDOWED]  #: those that attend to everything before

#: Those whose attention takes no options, or drops them, has sinks, keeps something else in its cache, or is none at all.
OWN_WAYS: dict[str, dict[str, Any]] = {
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "stablelm": {},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["full_attention"] * 2},
    "deepseek_v3": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_group": 1,
        "topk_group": 1,
    }
    | {"first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    | {"v_head_dim": 8, "num_key_value_heads": 4},
    "mamba": {"state_size": 4},
}


def own_way(kind: str) -> PreTrainedModel:
    """Return a random model of one of these."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SHAPE | OWN_WAYS[kind]))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return model.eval()


def family(name: str) -> PreTrainedModel:
    """Return a model of this architecture, always the same one."""
    return build(name, None)


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
