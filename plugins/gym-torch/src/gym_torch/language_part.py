"""What of a model is its language model: the rest, such as a vision tower and the projector behind it, stays as it is."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from transformers import PreTrainedModel

SENSES = ("image", "audio")  #: what a model may have an encoder of


def takes_text_alone(model: PreTrainedModel) -> bool:
    """Whether a model has no encoder of anything but text."""
    return all(model.get_encoder(modality=sense) is model for sense in SENSES)


def in_language_part(model: PreTrainedModel) -> Callable[[str], bool]:
    """Return whether a weight or module, by its path in the model, is of the language model, its embeddings and its head.

    Of a model of text alone all are.
    """
    if takes_text_alone(model):
        return lambda path: True
    parts: list[nn.Module | None] = [model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings()]
    paths = [
        path for path, module in model.named_modules(remove_duplicate=False) if any(module is part for part in parts)
    ]
    return lambda path: any(f"{path}.".startswith(f"{part}.") for part in paths)
