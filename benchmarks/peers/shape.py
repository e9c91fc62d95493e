"""The body of the model that the benchmarks share: a Qwen3 of 30M parameters with a vocabulary of 8,192."""

from __future__ import annotations

from typing import Any

SMALL, LARGE = 8_192, 151_936  #: entries of the two vocabularies
SHAPE: dict[str, Any] = {  #: all of `config.json` but the vocabulary
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
PARAMETERS = 8 * (512 * (512 + 2 * 256) + 512 * 512 + 3 * 512 * 1536)  #: in the matrices of its layers
ATTENTION = 8 * 2 * 512  #: multiplications of a query with a key and a value, in all layers
