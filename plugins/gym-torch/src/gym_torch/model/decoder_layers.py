"""Where the decoder layers of a model are."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from gym_core import GymError


def layers_of(model: PreTrainedModel) -> tuple[nn.Module, str, nn.ModuleList]:
    """Return the list of decoder layers, with the module and the name it is found under."""
    count = model.config.get_text_config().num_hidden_layers
    for parent in model.base_model.modules():
        for name, module in parent.named_children():
            if isinstance(module, nn.ModuleList) and len(module) == count:
                return parent, name, module
    raise GymError(f"{type(model).__name__} has no list of layers", key="model")
