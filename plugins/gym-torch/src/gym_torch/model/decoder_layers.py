"""Where the decoder layers of a model are."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from gym_core import GymError
from gym_torch.language_part import in_language_part


def layers_of(model: PreTrainedModel) -> tuple[nn.Module, str, nn.ModuleList]:
    """Return the list of decoder layers, with the module and the name it is found under."""
    count, language = model.config.get_text_config().num_hidden_layers, in_language_part(model)
    for path, parent in model.named_modules():
        for name, module in parent.named_children():
            if isinstance(module, nn.ModuleList) and len(module) == count and language(f"{path}.{name}"):
                return parent, name, module
    raise GymError(f"{type(model).__name__} has no list of layers", key="model")
