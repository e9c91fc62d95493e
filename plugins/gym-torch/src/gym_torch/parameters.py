"""What trains of a transformers model, as optimizers are told it."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from gym_optim.groups import parameter_groups


def groups_of(model: PreTrainedModel) -> list[dict[str, Any]]:
    """Return the named parameters of a model that train, in groups by role (`gym_optim.groups`)."""
    options = model.config.get_text_config()
    head_dim = getattr(options, "head_dim", None) or options.hidden_size // options.num_attention_heads
    return parameter_groups(model, head=model.get_output_embeddings(), head_dim=head_dim)
