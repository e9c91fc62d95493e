"""How many positions a model has: one that looks them up ends with its table, one that computes them goes on, untrained."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

_SPARE = 2  #: rows at the beginning of some tables that stand for no position


def stated(model: PreTrainedModel) -> int | None:
    """Return for how many positions a model is made; None where its configuration does not say."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None) or None


def trained(model: PreTrainedModel) -> int | None:
    """Return the positions that a model was trained on; None where nobody knows, or they go on with the text (dynamic RoPE)."""
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    return None if rope.get("rope_type") == "dynamic" else stated(model)


def table(model: PreTrainedModel) -> int | None:
    """Return how many positions a model has a table of; None where it computes them, as with rotary ones."""
    said = stated(model)
    words = model.get_input_embeddings()
    tables = [part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding) and part is not words]
    return said if said and any(0 <= rows - said <= _SPARE for rows in tables) else None
