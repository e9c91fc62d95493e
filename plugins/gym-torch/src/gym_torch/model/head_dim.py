"""How wide a head of attention is."""

from __future__ import annotations

from transformers import PretrainedConfig


def head_dim(config: PretrainedConfig) -> int:
    """Return the numbers of one head, which some configurations say, and others leave to the hidden size; 0 without attention."""
    said: int | None = getattr(config, "head_dim", None)
    heads: int | None = getattr(config, "num_attention_heads", None)
    return said or (config.hidden_size // heads if heads else 0)
