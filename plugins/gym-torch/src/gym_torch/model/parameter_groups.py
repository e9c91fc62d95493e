"""What trains of a transformers model, as optimizers are told it."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from gym_optim.param_groups import parameter_groups
from gym_torch.model.head_dim import head_dim


def groups_of(model: PreTrainedModel, whole: nn.Module | None = None) -> list[dict[str, Any]]:
    """Return the named parameters that train, in groups by role (`gym_optim.param_groups`): of a model, or of its policy."""
    rows = head_dim(model.config.get_text_config()) or None
    return parameter_groups(whole or model, head=model.get_output_embeddings(), head_dim=rows)
