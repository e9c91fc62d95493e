"""Processors of transformers: opened for the media that are read, without other parts, which need libraries of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import partial
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoTokenizer,
    AutoVideoProcessor,
    ProcessorMixin,
)
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from gym_core import GymError

KEY = "data.media"
FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


class Part(NamedTuple):
    """What of a processor is about one medium."""

    name: str  #: of the part that reads it
    read: Callable[..., Any]  #: opens that part
    argument: str  #: of the processor
    mark: Callable[[Any], str]  #: what a processor says stands for one in a text
    written: Callable[[Any], Any]  #: its method that says what is put there


def _videos(path: Path, **options: Any) -> Any:
    return AutoVideoProcessor.from_pretrained(path, **options)  # without torchvision it has no attributes


#: Images are read by Pillow, whatever else is installed, so that the same file gives the same numbers everywhere.
_IMAGES = partial(AutoImageProcessor.from_pretrained, backend="pil")
PARTS = {
    medium: Part(name, read, argument, attrgetter(f"{medium}_token"), attrgetter(f"replace_{medium}_token"))
    for medium, name, read, argument in (
        ("image", "image_processor", _IMAGES, "images"),
        ("video", "video_processor", _videos, "videos"),
        ("audio", "feature_extractor", AutoFeatureExtractor.from_pretrained, "audio"),
    )
}
#: Of media that not every processor is trusted with: families for which what a model is given was compared with transformers.
COMPARED = {"video": ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_next_video"), "audio": ("qwen2_audio",)}
NEEDS = {"video": ("av", "torchvision"), "audio": ("av",)}  #: modules
EXAMPLES = {"image": "Qwen2.5-VL, Gemma 3 or LLaVA", "audio": "Qwen2-Audio"}


def processor_of(path: Path, media: Collection[str]) -> ProcessorMixin:
    """Return the processor of the model in a directory, for these media and text.

    Raises GymError where it has none, or one that does not say what stands for the first of them in a text.
    """
    first = next(iter(media))
    if not any((path / name).exists() for name in FILES):
        raise GymError(
            f"the model reads no {first}s: it has no {FILES[0]}",
            where=str(path),
            key=KEY,
            fix=f"name a model of {first}s and text, or leave `{KEY}` out",
        )
    try:
        processor = _with_parts(path, media)
    except Exception as error:  # files of other kinds of models raise whatever there is
        raise unopened(error, path) from error
    if PARTS[first].written(type(processor)) is PARTS[first].written(ProcessorMixin):
        raise GymError(
            f"{type(processor).__name__} does not say what stands for an {first} in a text",
            where=str(path),
            key=KEY,
            fix=f"name a model whose processor does, such as {EXAMPLES[first]}",
        )
    return processor


def unopened(error: Exception, path: Path) -> GymError:
    """Return what is said of a processor that raised something."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return GymError(f"the processor of the model cannot be opened: {reason}", where=str(path), key=KEY)


def unread(medium: str, path: Path) -> str:
    """Return why a medium is not read for the model in a directory; empty where it is."""
    family = AutoConfig.from_pretrained(path, local_files_only=True).model_type
    if family not in COMPARED.get(medium, (family,)):
        return f"{medium}s of `{family}` are not read: nothing compares them with transformers"
    if missing := [name for name in NEEDS.get(medium, ()) if find_spec(name) is None]:
        return f"{medium}s are read by {' and '.join(missing)}: pip install 'gym-vision[{medium}]'"
    return ""


def _with_parts(path: Path, media: Collection[str]) -> ProcessorMixin:
    local = {"local_files_only": True}
    kind = PROCESSOR_MAPPING[type(AutoConfig.from_pretrained(path, **local))]
    told, _ = kind.get_processor_dict(path, **local)
    parts = {"tokenizer": AutoTokenizer.from_pretrained(path, **local)}
    parts |= {PARTS[medium].name: PARTS[medium].read(path, **local) for medium in media}
    takes, attributes = inspect.signature(kind.__init__).parameters, kind.get_attributes()
    others = {name: None for name in attributes if name not in parts and takes[name].default is inspect.Parameter.empty}
    less = {
        "check_argument_for_proper_class": lambda *_: None,  # those that are left out are of no class
    }
    part_of = type(kind.__name__, (kind,), less)
    options = {name: value for name, value in told.items() if name in takes and name not in attributes}
    processor: ProcessorMixin = part_of(**parts, **others, **options)
    return processor
