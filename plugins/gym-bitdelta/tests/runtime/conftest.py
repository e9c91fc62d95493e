from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
}  # fmt: skip
KINDS = {
    "qwen3, tied": ("qwen3", SMALL | {"tie_word_embeddings": True, "pad_token_id": 49}),
    "gemma3": ("gemma3_text", SMALL | {"sliding_window": 32}),
    "gpt2": ("gpt2", {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "moe": ("qwen3_moe", SMALL | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", params=KINDS)
def family(request):
    """Return random models of families: a function that makes the same one each time."""
    kind, options = KINDS[request.param]

    def made():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).eval().requires_grad_(False)

    return made
