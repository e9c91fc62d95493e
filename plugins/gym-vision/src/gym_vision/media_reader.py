"""Reads media for a model by its processor in transformers: what they take up in a text, and what the model is given of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import transformers
from transformers import ProcessorMixin

from gym_core import DataError, GymError
from gym_core.files import expanded
from gym_data.media import Medium
from gym_data.rows import Named
from gym_vision import Sound, Vision
from gym_vision.media_files import decoded, hashed, located
from gym_vision.opening import opened
from gym_vision.processors import EXAMPLES, FILES, KEY, NEEDS, PARTS, processor_of, unopened, unread

TEXT = ("input_ids", "attention_mask")  #: what processors return of a text
UNFRAMED = {"add_special_tokens": False}
KINDS = ("mm_token_type_ids", "token_type_ids")  #: what says of each token whether it stands for a part of a medium


class ProcessorMedia:
    """A `gym_data.media.MediaReader`: the media of conversations for the model in one directory."""

    def __init__(self, config: Vision | Sound, path: Path) -> None:
        """Open the processor. Raises GymError where the model has none for the first medium, or one that says too little."""
        self.config, self.path = config, path
        self._last: tuple[str, Any] = "", None
        first, *others = config.reads
        self._without = {medium: why for medium in others if (why := unread(medium, path))}
        if first in NEEDS and (why := unread(first, path)):
            raise GymError(why, where=str(path), key=KEY)
        self._first, read = first, [first, *(medium for medium in others if medium not in self._without)]
        self.processor = processor_of(path, [first])
        self.marks = {medium: PARTS[medium].mark(self.processor) for medium in read}
        self._check(path)
        tokenizer = self.processor.tokenizer
        added = tokenizer.added_tokens_decoder
        parts = {  # line breaks around an image are added tokens too in Gemma 3
            token: added[token].content
            for token in (*self._trial["input_ids"][0], *tokenizer.convert_tokens_to_ids([*self.marks.values()]))
            if token in added and added[token].content.strip()
        }
        self.tokens, self.texts = frozenset(parts), frozenset(parts.values())
        files = {name: (path / name).read_text(encoding="utf-8") for name in FILES if (path / name).exists()}
        libraries = [version(name) for medium in read for name in NEEDS.get(medium, ())]
        made_by = [files, config.model_dump(), transformers.__version__, PIL.__version__, libraries]
        self.fingerprint = hashlib.sha256(json.dumps(made_by, sort_keys=True).encode()).hexdigest()

    @cached_property
    def _folder(self) -> Path | None:
        return expanded(self.config.folder) if self.config.folder else None

    @cached_property
    def _with_videos(self) -> ProcessorMixin:
        """The processor with what reads videos, which few conversations need, and which takes long to import."""
        return processor_of(self.path, [self._first, "video"])

    @cached_property
    def _trial(self) -> Any:
        """What the processor makes of an image of one colour, or a second of silence."""
        if self._first == "image":
            given: dict[str, Any] = {"images": [PIL.Image.new("RGB", (64, 64))]}
        else:
            given = {"audio": [np.zeros(self._rate, dtype=np.float32)], "sampling_rate": self._rate}
        text = [self.marks[self._first]]
        return self.processor(text=text, **given, **UNFRAMED, return_text_replacement_offsets=True)

    @cached_property
    def _rate(self) -> int:
        """Samples a second of the sounds that the model hears."""
        return int(self.processor.feature_extractor.sampling_rate)

    def _check(self, path: Path) -> None:
        """Raise GymError where the processor writes more than media into a text, which chat templates know nothing of."""
        try:
            (ids,), ((one,),) = self._trial["input_ids"], self._trial["text_replacement_offsets"]
            (alone,) = self.processor.tokenizer([one["replacement"]], **UNFRAMED)["input_ids"]
        except Exception as error:  # processors of transformers raise whatever they are led to
            raise unopened(error, path) from error
        if list(ids) != alone:
            raise GymError(
                f"{type(self.processor).__name__} writes more than the {self._first} into a text, and reads conversations "
                "otherwise",
                where=str(path),
                key=KEY,
                fix=f"name a model for conversations, such as {EXAMPLES[self._first]}",
            )

    def found(self, named: Named, folder: Path) -> Medium:
        """Return what a row names. Raises ValueError where it is none that is read, and GymError where a library is missing."""
        medium = named.medium
        if why := self._without.get(medium, "" if medium in self.marks else f"the model reads no {medium}s"):
            if "pip install" in why:
                raise GymError(why, key=KEY)
            raise ValueError(why)
        path = located(named.value, self._folder or folder, medium)
        return {"medium": medium, "path": str(path.absolute()), "sha256": hashed(path, medium)}

    def sent(self, url: str) -> Medium:
        """Return the image that a `data:` URL holds."""
        if self._first != "image":
            raise ValueError("the model reads no images")
        if not url.startswith("data:image/"):
            raise ValueError(
                "an image is sent as a `data:image/...;base64,` URL: no address is fetched, and no file read"
            )
        if not decoded(url):
            raise ValueError("an image has no bytes in base64")
        return {"medium": "image", "url": url}

    def written(self, media: Sequence[Medium]) -> list[str]:
        """Return the text that stands for each of the media."""
        processed = self._processed(media, return_text_replacement_offsets=True)
        return [each["replacement"] for each in processed["text_replacement_offsets"][0]]

    def inputs(self, media: Sequence[Medium], tokens: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[Any]]:
        """Return pixels, features of sounds, and what else the model is given beside these tokens."""
        if not media:
            return {}
        processed = self._looked_at(media)
        said, ids = tokens.tolist(), processed["input_ids"][0].tolist()
        given = {name: _single(value) for name, value in processed.items() if name not in (*TEXT, *KINDS)}
        if said[-1] in self.tokens and self._parts(said) > self._parts(ids):
            said[-1] = (
                self._other
            )  # a model said it, and there is no medium for it; nothing follows, so nothing changes
            given["input_ids"] = np.asarray([said], dtype=np.int64)
        for name in KINDS:
            if name in processed:
                kinds = dict(zip(ids, processed[name][0].tolist(), strict=True))
                given[name] = np.asarray([[kinds.get(token, 0) for token in said]], dtype=np.int64)
        return given

    def _parts(self, tokens: Sequence[int]) -> int:
        return sum(token in self.tokens for token in tokens)

    @cached_property
    def _other(self) -> int:
        """A token that stands for no part of a medium."""
        return next(token for token in range(len(self.tokens) + 1) if token not in self.tokens)

    def _looked_at(self, media: Sequence[Medium]) -> Any:
        """Return what the processor makes of media; the last ones are kept, for several sequences in a row show the same."""
        key = json.dumps(media, default=dict)
        kept, processed = self._last
        if kept != key:
            try:
                processed = self._processed(media, return_tensors="np")
            except ValueError as error:
                raise DataError(str(error), key=KEY, fix="prepare the data again: `data.rebuild=true`") from error
            self._last = key, processed
        return processed

    def _processed(self, media: Sequence[Medium], **options: Any) -> Any:
        """Have the processor read media, and a text of nothing but their marks."""
        given: dict[str, list[Any]] = {}
        for each in media:
            given.setdefault(each["medium"], []).append(self.opened(each))
        text = ["".join(self.marks[each["medium"]] for each in media)]
        arguments: dict[str, Any] = {PARTS[medium].argument: several for medium, several in given.items()}
        processor = self.processor
        if "video" in given:
            processor = self._with_videos
            arguments["videos"], told = map(list, zip(*given["video"], strict=True))
            options |= {"video_metadata": told, "do_sample_frames": False}
        if "audio" in given:
            options |= {"sampling_rate": self._rate}
        return processor(text=text, **arguments, **UNFRAMED, **options)

    def opened(self, one: Medium) -> Any:
        """Return a medium as the processor is given it. Raises ValueError where its file is not what it was."""
        return opened(one, self.config, self.processor)


def _single(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return numbers as torch has those of Python, such as seconds of videos, which NumPy holds in double precision."""
    return value.astype(np.float32) if value.dtype == np.float64 else value
