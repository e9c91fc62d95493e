"""Images, videos and sounds of rows: how these name them, where they stand in a text, and what reads them for a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gym_data.chat.loss_masks import Rendered
from gym_data.formats.media import KEYS
from gym_data.rows import Named, mark_of

BEYOND = "an image, a video or a sound beyond the cutoff"
Medium = Mapping[str, str]
"""One that was found: `medium` (`image`...), and `path` of its file and `sha256` of what that holds, or the `url` with it."""


class MediaReader(Protocol):
    """What `gym_data.kinds.Media` build: reads media for one model."""

    fingerprint: str
    """Changes with what decides how many tokens a medium takes."""
    marks: Mapping[str, str]
    """By medium that the model reads, what its chat template writes for one."""
    tokens: frozenset[int]
    """The tokens that stand for parts of media."""
    texts: frozenset[str]
    """How these tokens are written."""

    def found(self, named: Named, folder: Path) -> Medium:
        """Return what a row names, a path in `folder` or bytes. Raises ValueError where it is none that the model reads."""
        ...

    def sent(self, url: str) -> Medium:
        """Return the image that a `data:` URL of a stranger holds, of which no file is made and none read.

        Raises ValueError where it is no such URL, or holds nothing. What it holds is looked at by `written`.
        """
        ...

    def written(self, media: Sequence[Medium]) -> list[str]:
        """Return the text that stands in the place of the mark of each of the media of one conversation.

        Raises ValueError where one cannot be read.
        """
        ...

    def inputs(self, media: Sequence[Medium], tokens: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[Any]]:
        """Return what the model is given beside the tokens of a sequence with these media, by the names of its `forward`.

        Raises DataError where a file has changed since it was found.
        """
        ...


def placed(
    rendered: Rendered, reader: MediaReader, media: Sequence[Medium], written: Sequence[str]
) -> tuple[Rendered, list[int]]:
    """Return a text with what is `written` for the media it shows in the places of their marks, and which these are, in order.

    Of each medium it shows the first ones, for it is a conversation or the beginning of one; what is trained on moves along.
    Raises ValueError where it has more marks than there are media, or spells out a token of media, for which there is none.
    """
    names = {mark: medium for medium, mark in reader.marks.items()}
    pattern = "|".join(map(re.escape, names))
    matches = [*re.finditer(pattern, rendered.text)]
    count, given = Counter(names[match.group()] for match in matches), Counter(each["medium"] for each in media)
    for medium in count:
        if count[medium] > given[medium]:
            places = f"`{mark_of(medium)}` in a message or `{reader.marks[medium]}` in a text"
            raise ValueError(f"it has {given[medium]} {medium}s for {count[medium]} places, {places}")
    pieces = re.split(pattern, rendered.text)
    if spelt := next((each for each in reader.texts if any(each in piece for piece in pieces)), None):
        raise ValueError(f"a text spells out `{spelt}`, which stands for a part of an image, a video or a sound")
    those = {name: [at for at, each in enumerate(media) if each["medium"] == name][: count[name]] for name in count}
    left = {name: iter(several) for name, several in those.items()}
    texts = [written[next(left[names[match.group()]])] for match in matches]

    def moved(place: int) -> int:
        before = ((match, text) for match, text in zip(matches, texts, strict=True) if match.end() <= place)
        return place + sum(len(text) - len(match.group()) for match, text in before)

    text = "".join(part for pair in zip(pieces, [*texts, ""], strict=True) for part in pair)
    spans = tuple((moved(start), moved(end)) for start, end in rendered.spans)
    return Rendered(text, spans, rendered.last), sorted(at for several in those.values() for at in several)


def shown(
    named: Sequence[Named], sequences: Sequence[Rendered], reader: MediaReader, folder: Path
) -> list[tuple[list[Medium], Rendered]]:
    """Return the sequences of a conversation with what its media, in this folder, take up in them, and which each shows.

    Raises ValueError where one cannot be read, or the template leaves some out.
    """
    found = [reader.found(each, folder) for each in named]
    written = reader.written(found) if found else []
    texts = [placed(each, reader, found, written) for each in sequences]
    most = max((len(those) for _, those in texts), default=len(found))
    if most < len(found):
        left_out = f"{found[-1]['medium']}s: it shows {most} of {len(found)}"
        raise ValueError(f"the chat template leaves out {left_out}")
    return [([found[at] for at in those], text) for text, those in texts]


def with_paths(value: Any, named: Sequence[Named], found: Sequence[Medium], key: str = "") -> Any:
    """Return what a row holds, under a key of it, with the whole path of its file in the place of each of its media.

    One that is bytes, or a mapping, is known anywhere; a text is one under a key of media, or in a list of nothing else.
    """
    if isinstance(value, str) and key not in KEYS:
        return value
    paths = (own["path"] for each, own in zip(named, found, strict=True) if each.value == value)
    if (path := next(paths, None)) is not None:
        return path
    if isinstance(value, Mapping):
        return {name: with_paths(each, named, found, name) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    media = [each.value for each in named]
    key = next(iter(KEYS)) if all(each in media for each in value) else ""
    return [with_paths(each, named, found, key) for each in value]


def whole(tokens: npt.NDArray[np.int32], cutoff: int, media: frozenset[int]) -> bool:
    """Whether all tokens of media are within the cutoff."""
    return not np.isin(tokens[cutoff:], list(media)).any()
