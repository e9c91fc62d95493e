"""What trains of a transformers model, as optimizers are told it."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from gym_optim.param_groups import parameter_groups


def groups_of(model: PreTrainedModel, whole: nn.Module | None = None) -> list[dict[str, Any]]:
    """Return the named parameters that train, in groups by role (`gym_optim.param_groups`): of a model, or of its policy."""
    options = model.config.get_text_config()
    heads = getattr(options, "num_attention_heads", None)  # a model without attention has none
    head_dim = getattr(options, "head_dim", None) or (options.hidden_size // heads if heads else None)
    return parameter_groups(whole or model, head=model.get_output_embeddings(), head_dim=head_dim)
