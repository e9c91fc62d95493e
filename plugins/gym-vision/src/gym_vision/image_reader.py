"""Reads images for a model by its processor in transformers: what they take up in a text, and what the model is given of them."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import transformers
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, ProcessorMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from gym_core import DataError, GymError
from gym_core.files import expanded
from gym_data.images import Image
from gym_vision import Vision
from gym_vision.image_files import SENT, decoded, hashed, located, opened

KEY = "data.images"
FILES = ("preprocessor_config.json", "processor_config.json")
TEXT = ("input_ids", "attention_mask")  #: what processors return of a text
UNFRAMED = {"add_special_tokens": False}
KINDS = ("mm_token_type_ids", "token_type_ids")  #: what says of each token whether it stands for a part of an image


class ProcessorImages:
    """A `gym_data.images.ImageReader`: the images of conversations for the model in one directory."""

    def __init__(self, config: Vision, path: Path) -> None:
        """Open the processor. Raises GymError where the model has none for images, or one that says too little of them."""
        self.config = config
        self._last: tuple[str, Any] = "", None
        self.processor = _processor(path)
        self.mark: str = self.processor.image_token
        self._check(path)
        added = self.processor.tokenizer.added_tokens_decoder
        parts = {  # line breaks around an image are added tokens too in Gemma 3
            token: added[token].content
            for token in self._trial["input_ids"][0]
            if token in added and added[token].content.strip()
        }
        self.tokens, self.texts = frozenset(parts), frozenset(parts.values())
        files = {name: (path / name).read_text(encoding="utf-8") for name in FILES if (path / name).exists()}
        made_by = [files, config.model_dump(), transformers.__version__, PIL.__version__]
        self.fingerprint = hashlib.sha256(json.dumps(made_by, sort_keys=True).encode()).hexdigest()

    @cached_property
    def _folder(self) -> Path | None:
        return expanded(self.config.folder) if self.config.folder else None

    @cached_property
    def _trial(self) -> Any:
        """What the processor makes of an image of one colour."""
        image = PIL.Image.new("RGB", (64, 64))
        return self.processor(images=[image], text=[self.mark], **UNFRAMED, return_text_replacement_offsets=True)

    def _check(self, path: Path) -> None:
        """Raise GymError where the processor writes more than images into a text, which chat templates know nothing of."""
        try:
            (ids,), ((image,),) = self._trial["input_ids"], self._trial["text_replacement_offsets"]
            (alone,) = self.processor.tokenizer([image["replacement"]], **UNFRAMED)["input_ids"]
        except Exception as error:  # processors of transformers raise whatever they are led to
            raise _unopened(error, path) from error
        if list(ids) != alone:
            raise GymError(
                f"{type(self.processor).__name__} writes more than the image into a text, and reads conversations otherwise",
                where=str(path),
                key=KEY,
                fix="name a model for conversations, such as Qwen2.5-VL, Gemma 3 or LLaVA",
            )

    @cached_property
    def _kinds(self) -> dict[str, dict[int, int]]:
        """By the names that the model has for it, what is said of the tokens of images."""
        (ids,) = self._trial["input_ids"]
        return {name: dict(zip(ids, self._trial[name][0], strict=True)) for name in KINDS if name in self._trial}

    def found(self, image: Any, folder: Path) -> Image:
        """Return an image that a row names."""
        path = located(image, self._folder or folder)
        return {"path": str(path.absolute()), "sha256": hashed(path)}

    def sent(self, url: str) -> Image:
        """Return the image that a `data:` URL holds."""
        if not url.startswith("data:image/"):
            raise ValueError(
                "an image is sent as a `data:image/...;base64,` URL: no address is fetched, and no file read"
            )
        if not decoded(url):
            raise ValueError("an image has no bytes in base64")
        return {"url": url}

    def written(self, images: Sequence[Image]) -> list[str]:
        """Return the text that stands for each image."""
        processed = self._processed(images, return_text_replacement_offsets=True)
        return [each["replacement"] for each in processed["text_replacement_offsets"][0]]

    def inputs(self, images: Sequence[Image], tokens: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[Any]]:
        """Return pixels and what else the model is given beside these tokens."""
        if not images:
            return {}
        processed = self._looked_at(images)
        said = tokens.tolist()
        given = {name: value for name, value in processed.items() if name not in (*TEXT, *KINDS)}
        if said[-1] in self.tokens and self._parts(said) > self._parts(processed["input_ids"][0].tolist()):
            said[-1] = self._other  # a model said it, and there is no image for it; nothing follows, so nothing changes
            given["input_ids"] = np.asarray([said], dtype=np.int64)
        for name, kinds in self._kinds.items():
            given[name] = np.asarray([[kinds.get(token, 0) for token in said]], dtype=np.int64)
        return given

    def _parts(self, tokens: Sequence[int]) -> int:
        return sum(token in self.tokens for token in tokens)

    @cached_property
    def _other(self) -> int:
        """A token that stands for no part of an image."""
        return next(token for token in range(len(self.tokens) + 1) if token not in self.tokens)

    def _looked_at(self, images: Sequence[Image]) -> Any:
        """Return what the processor makes of images; the last ones are kept, for several sequences in a row show the same."""
        key = json.dumps(images, default=dict)
        kept, processed = self._last
        if kept != key:
            try:
                processed = self._processed(images, return_tensors="np")
            except ValueError as error:
                raise DataError(str(error), key=KEY, fix="prepare the data again: `data.rebuild=true`") from error
            self._last = key, processed
        return processed

    def _processed(self, images: Sequence[Image], **options: Any) -> Any:
        """Have the processor read images, and a text of nothing but their marks."""
        read = [self.opened(image) for image in images]
        return self.processor(images=read, text=[self.mark * len(read)], **UNFRAMED, **options)

    def opened(self, image: Image) -> Any:
        """Return an image as the processor is given it. Raises ValueError where its file is not what it was."""
        bounds = self.config.min_pixels, self.config.max_pixels
        if "url" in image:
            return opened(decoded(image["url"]), "that was sent", *bounds, largest=SENT)
        try:
            content = Path(image["path"]).read_bytes()
        except OSError as error:
            raise ValueError(f"the image {image['path']} cannot be read: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != image["sha256"]:
            raise ValueError(f"the image {image['path']} has changed since it was prepared")
        return opened(content, image["path"], *bounds)


def _processor(path: Path) -> ProcessorMixin:
    """Return the processor of the model in a directory, for images and text alone."""
    if not any((path / name).exists() for name in FILES):
        raise GymError(
            "the model reads no images: it has no preprocessor_config.json",
            where=str(path),
            key=KEY,
            fix="name a model of images and text, or leave `data.images` out",
        )
    try:
        processor = _of_images(path)
    except Exception as error:  # files of other kinds of models raise whatever there is
        raise _unopened(error, path) from error
    if type(processor).replace_image_token is ProcessorMixin.replace_image_token:
        raise GymError(
            f"{type(processor).__name__} does not say what stands for an image in a text",
            where=str(path),
            key=KEY,
            fix="name a model whose processor does, such as Qwen2.5-VL, Gemma 3 or LLaVA",
        )
    return processor


def _unopened(error: Exception, path: Path) -> GymError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return GymError(f"the processor of the model cannot be opened: {reason}", where=str(path), key=KEY)


def _of_images(path: Path) -> ProcessorMixin:
    """Return the processor of transformers without its parts for videos and sound, which need libraries of their own.

    Images are read by Pillow, whatever else is installed, so that the same file gives the same numbers everywhere.
    """
    local = {"local_files_only": True}
    kind = PROCESSOR_MAPPING[type(AutoConfig.from_pretrained(path, **local))]
    told, _ = kind.get_processor_dict(path, **local)
    parts = {
        "image_processor": AutoImageProcessor.from_pretrained(path, backend="pil", **local),
        "tokenizer": AutoTokenizer.from_pretrained(path, **local),
    }
    takes, attributes = inspect.signature(kind.__init__).parameters, kind.get_attributes()
    others = {name: None for name in attributes if name not in parts and takes[name].default is inspect.Parameter.empty}
    own = [name for name in attributes if name in parts or name in others]
    less = {
        "get_attributes": classmethod(lambda _: own),
        "check_argument_for_proper_class": lambda *_: None,  # those that are left out are of no class
    }
    of_images = type(kind.__name__, (kind,), less)
    options = {name: value for name, value in told.items() if name in takes and name not in attributes}
    processor: ProcessorMixin = of_images(**parts, **others, **options)
    return processor
