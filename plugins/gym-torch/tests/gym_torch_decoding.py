"""What the tests of generation share: prompts, random models of every family, and decoding without a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

PROMPTS = [[number % 49 + 1 for number in range(start, start * 2 + 3)] for start in (1, 7, 3, 12, 5, 2, 9, 4)]
SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.3, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
#: what differs from SIZES, and the model type where it is not the name
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {},
    "phi3": {},
    "mistral": {"sliding_window": 4},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "gemma3_text": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "sliding": {"type": "qwen3", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
}


@dataclass(frozen=True)
class Words:
    """A tokenizer of numbers."""

    eos_id: int = 0
    pad_id: int = 0

    def chat(
        self, messages: list[dict[str, str]], tools: None = None, generation_prompt: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        ids = [int(word) for message in messages for word in message["content"].split()]
        return np.array(ids + [49] * generation_prompt, np.int32), np.zeros(len(ids) + generation_prompt, bool)

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


@cache
def model_of(family: str) -> PreTrainedModel:
    """Return a random model; weights of standard deviation 0.3 make its choices clear."""
    options = SIZES | FAMILIES[family]
    config = AutoConfig.for_model(options.pop("type", family), **options)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


@torch.no_grad()
def one_by_one(model: PreTrainedModel, prompt: list[int], most: int) -> tuple[list[int], list[float]]:
    """Decode greedily without a cache and without a batch."""
    tokens, log_probs = list(prompt), []
    while len(tokens) < len(prompt) + most and (len(tokens) == len(prompt) or tokens[-1] != 0):
        after = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
        tokens.append(int(after.argmax()))
        log_probs.append(float(after.max()))
    return tokens[len(prompt) :], log_probs
