"""What of a model of several senses is its language model, and which of the other parts train beside it or in its place."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import nn
from transformers import PreTrainedModel

from gym_core import GymError

SENSES = ("image", "audio")  #: what a model may have an encoder of
LANGUAGE, TOWER, PROJECTOR = "language_model", "vision_tower", "multi_modal_projector"
#: What of an encoder of images maps to the language model, where that lies inside it, as in the families of Qwen.
MERGER = "merger"


def takes_text_alone(model: PreTrainedModel) -> bool:
    """Whether a model has no encoder of anything but text."""
    return all(model.get_encoder(modality=sense) is model for sense in SENSES)


def in_language_part(model: PreTrainedModel) -> Callable[[str], bool]:
    """Return whether a weight or module, by its path in the model, is of the language model, its embeddings and its head.

    Of a model of text alone all are.
    """
    if takes_text_alone(model):
        return lambda path: True
    return _inside(model, model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())


def in_parts(model: PreTrainedModel, parts: Collection[str]) -> Callable[[str], bool]:
    """Return whether a weight or module, by its path in the model, is of one of these parts.

    They are `language_model`, as `in_language_part` has it, `vision_tower`, what encodes images, and `multi_modal_projector`,
    what lies between the two, or is the `merger` of the tower. An encoder of sound is none of them.

    Raises GymError where the model has no tower and more, or less, than its language model is asked for.
    """
    language = in_language_part(model)
    if {*parts} == {LANGUAGE}:
        return language
    encoder = model.get_encoder(modality="image")
    if encoder is model or encoder is None:
        asked = "freeze_language_model" if LANGUAGE not in parts else f"freeze_{min({*parts} - {LANGUAGE})}"
        why = f"{type(model).__name__} reads no images: it has a language model alone"
        raise GymError(why, key=f"adapter.{asked}", fix="leave it out, or name a model of images and text")
    sound = model.get_encoder(modality="audio")
    tower, merger = _inside(model, encoder), _inside(model, *_children(encoder, MERGER))
    other = _inside(model, None if sound is model else sound)

    def part(path: str) -> str:
        if language(path):
            return LANGUAGE
        if other(path):
            return ""
        return TOWER if tower(path) and not merger(path) else PROJECTOR

    return lambda path: part(path) in parts


def _children(module: nn.Module, wanted: str) -> list[nn.Module]:
    return [child for name, child in module.named_children() if name == wanted]


def _inside(model: nn.Module, *parts: nn.Module | None) -> Callable[[str], bool]:
    """Return whether a path in the model is that of a part, or of something in it."""
    paths = [
        path for path, module in model.named_modules(remove_duplicate=False) if any(module is part for part in parts)
    ]
    return lambda path: any(f"{path}.".startswith(f"{part}.") for part in paths)
