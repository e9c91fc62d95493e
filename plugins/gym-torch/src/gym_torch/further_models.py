"""Further models of a run, such as references and critics, loaded as its backend declares."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gym_core import GymError, PluginError, Recipe, Train
from gym_core.component import construct
from gym_data.kinds import Data, Media
from gym_data.media import MediaReader
from gym_data.tokenizer import Tokenizer
from gym_torch.config import Further, TorchAlgorithm
from gym_torch.kinds import TorchBackend, part
from gym_torch.memory.gradient_checkpointing import recompute_layers
from gym_torch.model.adapted import AdaptedModel, adapt
from gym_torch.model.auto_class import AutoLanguageModel
from gym_torch.model.dropout import disable_dropout
from gym_torch.model.loading import LoadedModel, check_loaded
from gym_torch.model.rope_scaling import longest
from gym_torch.model_files import PATH

#: an image, red and blue
TWO_PIXELS = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAAD0lEQVR4nGM4"
    "IWfDVfELAAhFAp84G1BGAAAAAElFTkSuQmCC"
)


@dataclass(frozen=True)
class TrainedFurther:
    """A further model that trains: as it was loaded, and as the adapter of the recipe made it."""

    loaded: LoadedModel
    adapted: AdaptedModel


def load_further(further: Further, recipe: Recipe, model: LoadedModel) -> LoadedModel:
    """Load a further model, frozen, for batches as those of `model`; without a path a second copy of it, as it began.

    Raises PluginError where the backend does not say how, and GymError where the model cannot be loaded, has another
    tokenizer, or takes text alone where samples may have images.
    """
    backend = part(recipe, TorchBackend)
    assert backend is not None
    kind = type(backend)
    if not kind.further:
        raise PluginError(
            f"{kind.__name__} does not declare `further`, and this algorithm needs a second model",
            where=f"{kind.__module__}.{kind.__name__}",
            key="model",
            fix="set `further: ClassVar[str]` to a module:function; docs/kinds.md says what it is called with",
        )
    named = further.path is not None
    options = backend.other(further.path) if further.path is not None else backend
    found = construct(
        kind.further,
        options,
        precision=model.precision,
        layout=model.layout,
        seed=recipe.train.seed,
        samples=longest(recipe),
        key=further.key if named else PATH,
    )
    loaded = check_loaded(found, kind.further, "model")
    if Tokenizer(loaded.path).fingerprint != Tokenizer(model.path).fingerprint:
        raise GymError(
            "a further model must have the tokenizer of the model that is trained",
            where=loaded.name,
            key=further.key,
            fix="name a model of the same family",
        )
    data = part(recipe, Data)
    if data is not None and data.brings_inputs() and not AutoLanguageModel.reads_media(loaded.model.config):
        raise GymError(
            f"{type(loaded.model).__name__} takes text alone, and samples may have images",
            where=loaded.name,
            key=further.key,
            fix="name a model of images and text",
        )
    media = None if data is None else data.reads_media()
    if media is not None and loaded.path != model.path and not _shown_alike(media, model.path, loaded.path):
        raise GymError(
            "its processor makes something else of an image than that of the model that is trained, whose samples it is given",
            where=loaded.name,
            key=further.key,
            fix="name a model of the same family, with the same sizes of images and patches",
        )
    return loaded


def _shown_alike(media: Media, *paths: Path) -> bool:
    """Whether models in some directories are given the same of one image; those are left out that bring no processor."""
    made: list[Mapping[str, npt.NDArray[Any]]] = []
    for path in paths:
        with suppress(GymError):
            reader: MediaReader = media.build(path=path)
            if "image" in reader.marks:
                made.append(reader.inputs([reader.sent(TWO_PIXELS)], np.asarray([min(reader.tokens)], dtype=np.int32)))
    return all(
        one.keys() == made[0].keys() and all(np.array_equal(one[name], made[0][name]) for name in one)
        for one in made[1:]
    )


def trained_further(config: TorchAlgorithm, recipe: Recipe, model: LoadedModel, train: Train) -> list[TrainedFurther]:
    """Load the further models of an algorithm that train, adapted as `model` is; without dropout where that has none."""
    found = []
    for further in config.further():
        if further.trains:
            loaded = load_further(further, recipe, model)
            adapted = adapt(loaded.model, recipe)
            if config.disable_dropout:
                disable_dropout(adapted.model)
            recompute_layers(adapted.model, train.gradient_checkpointing)
            found.append(TrainedFurther(loaded, adapted))
    return found
