"""Images, videos and sounds in rows: in columns of their own, or in the contents of messages. A ValueError says what is wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gym_data.formats.parsing import text_of
from gym_data.rows import MEDIA, Message, Named, mark_of

_MARKS = re.compile("|".join(map(mark_of, MEDIA)))
#: Types of parts of a content by medium. It stands under its type, `path`, `url` or its name.
PARTS = {"image": "image", "image_url": "image", "video": "video", "video_url": "video"} | {
    "audio": "audio",
    "audio_url": "audio",
}
#: What parts of Qwen's tools say of how one medium is shown.
SHOWN = (
    *("video_start", "video_end", "fps", "nframes", "min_frames", "max_frames"),
    *("min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width"),
)
Columns = Mapping[str, str]  #: by medium
COLUMNS: Columns = {
    medium: f"{medium}s" for medium in MEDIA
}  #: usual ones of several; those of one are named as the medium is

KEYS = ("path", "url", *COLUMNS, *COLUMNS.values(), *PARTS)  #: under which a row names media

UNNAMED: Any = object()  #: the value of a part of a content that names no file, and has one of a column


def media_of(row: Mapping[str, Any], columns: Columns = COLUMNS) -> list[Named]:
    """Return the media in columns: paths, bytes, or mappings with `bytes` or `path`."""
    found: list[Named] = []
    for medium, name in columns.items():
        value = row.get(name) or row.get(medium)
        listed = value if isinstance(value, list) else [value] if value else []
        if not all(isinstance(each, str | bytes | Mapping) for each in listed):
            raise ValueError(f"column `{name}` holds no {medium}s: paths, bytes, or objects with `bytes` or `path`")
        found += [Named(medium, each) for each in listed]
    return found


def no_media(row: Mapping[str, Any]) -> None:
    """Raise ValueError where a row has media, for a format that reads text alone."""
    if media := media_of(row):
        raise ValueError(f"it has {media[0].medium}s, which are not read here")


def marks_in(text: str) -> list[Named]:
    """Return what the marks in a text stand for: media of a column, which it does not name."""
    return [Named(mark[1:-1], None) for mark in _MARKS.findall(text)]


def placed_media(
    messages: Sequence[Message], own: Sequence[Named], columns: Sequence[Named]
) -> tuple[list[Message], tuple[Named, ...]]:
    """Return messages and their media, one for each mark; `own` has those of the contents, as `content_of` tells them.

    Those of a column that no mark stands for come before the first message of the user, as TRL has them; where the messages
    begin with an answer, they belong to those before. Raises ValueError where there are more or fewer of a medium than marks, or
    an answer has one. Marks of a medium that the row has none of are text, but a part is not.
    """
    given = [each for each in own if _is_named(each)]
    media = {each.medium for each in (*columns, *given)}
    if part := next((each.medium for each in own if each.value is UNNAMED and each.medium not in media), ""):
        raise ValueError(f"a part of type `{part}` names no {part}, and the row has none")
    if not media:
        return list(messages), ()
    check_answers(messages, media)
    marked = {each.medium for each in own}
    found, bare = list[Named](), [each for each in columns if each.medium not in marked]
    places = Counter(each.medium for each in own if not _is_named(each))
    counts = Counter(each.medium for each in columns)
    for medium in sorted(media & marked):
        if places[medium] != counts[medium]:
            raise ValueError(f"it has {counts[medium]} {medium}s for {places[medium]} places `{mark_of(medium)}`")
        others = iter([each for each in columns if each.medium == medium])
        found += [each if _is_named(each) else next(others) for each in own if each.medium == medium]
    first = next((number for number, message in enumerate(messages) if message["role"] != "system"), None)
    if not bare or first is None or messages[first]["role"] != "user":
        return list(messages), tuple(found)
    marks = "".join(mark_of(each.medium) for each in bare)
    begun = {**messages[first], "content": marks + messages[first]["content"]}
    return [*messages[:first], begun, *messages[first + 1 :]], (*found, *bare)


def _is_named(each: Named) -> bool:
    return each.value is not None and each.value is not UNNAMED


def check_answers(messages: Sequence[Message], media: set[str]) -> None:
    """Raise ValueError where an answer has a mark of one of these media."""
    answers = (message["content"] for message in messages if message["role"] == "assistant")
    if found := next((each for text in answers for each in marks_in(text) if each.medium in media), None):
        raise ValueError(f"an answer holds {found.medium}s, and only text is answered")


def content_of(value: Any, what: str) -> tuple[str, list[Named]]:
    """Return a content as text with a mark for each medium, and for each what stands there: None for a mark, or `UNNAMED`.

    It is a text, or a list of parts as transformers and OpenAI have them. Raises ValueError for what is neither.
    """
    if not isinstance(value, list):
        text = text_of(value, what)
        return text, marks_in(text)
    texts, own = list[str](), list[Named]()
    for part in value:
        kind = part.get("type", "text") if isinstance(part, Mapping) else None
        if kind in PARTS:
            medium = PARTS[kind]
            if told := next((key for key in SHOWN if part.get(key) is not None), None):
                raise ValueError(
                    f"{what} says `{told}` of one {medium}; how they are shown is said of all, in `data.media`"
                )
            found = next((part[key] for key in (medium, "path", "url", f"{medium}_url") if part.get(key)), UNNAMED)
            texts.append(mark_of(medium))
            own.append(Named(medium, found["url"] if isinstance(found, Mapping) and "url" in found else found))
            continue
        if kind != "text":
            raise ValueError(f"{what} holds more than text, images, videos and sounds: a part of type `{kind}`")
        texts.append(text_of(part.get("text"), what))
        own += marks_in(texts[-1])
    return "".join(texts), own
