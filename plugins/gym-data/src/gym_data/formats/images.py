"""Images in rows: in a column of their own, or in the contents of messages. A ValueError says what is wrong with a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gym_data.formats.parsing import text_of
from gym_data.rows import MARK, Message

IMAGES = ("images", "image")  #: usual columns of images
PARTS = ("image", "image_url")  #: types of a part of a content that is an image
KEYS = ("image", "path", "url", "image_url")  #: of a part of a content, in which an image may stand


def images_of(row: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """Return the images in a column, or in the column `image`: paths, bytes, or mappings with `bytes` or `path`."""
    value = row.get(name) or row.get(IMAGES[1])
    listed = value if isinstance(value, list) else [value] if value else []
    if not all(isinstance(each, str | bytes | Mapping) for each in listed):
        raise ValueError(f"column `{name}` holds no images: paths, bytes, or objects with `bytes` or `path`")
    return tuple(listed)


def placed_images(
    messages: Sequence[Message], own: Sequence[Any], column: Sequence[Any]
) -> tuple[list[Message], tuple[Any, ...]]:
    """Return messages and their images, one for each mark; `own` has those that stand in contents, None for other marks.

    Images of a column that no mark stands for come before the first message of the user, as TRL has them; where the messages
    begin with an answer, they belong to those before. Raises ValueError where there are more or fewer images than marks, or an
    answer has one.
    """
    given = [each for each in own if each is not None]
    if not (column or given):
        return list(messages), ()
    check_answers(messages)
    if not own:
        first = next((number for number, message in enumerate(messages) if message["role"] != "system"), None)
        if first is None or messages[first]["role"] != "user":
            return list(messages), ()
        begun = {**messages[first], "content": MARK * len(column) + messages[first]["content"]}
        return [*messages[:first], begun, *messages[first + 1 :]], tuple(column)
    if len(own) - len(given) != len(column):
        raise ValueError(f"it has {len(column)} images for {len(own) - len(given)} places `{MARK}`")
    others = iter(column)
    return list(messages), tuple(next(others) if each is None else each for each in own)


def check_answers(messages: Sequence[Message]) -> None:
    """Raise ValueError where an answer has a mark of an image."""
    if any(MARK in message["content"] for message in messages if message["role"] == "assistant"):
        raise ValueError("an answer holds an image, and only text is answered")


def content_of(value: Any, what: str) -> tuple[str, list[Any]]:
    """Return a content as text with a mark for each image, and for each mark the image that stands there, or None.

    It is a text, or a list of parts as transformers and OpenAI have them. Raises ValueError for what is neither, or has sound.
    """
    if not isinstance(value, list):
        text = text_of(value, what)
        return text, [None] * text.count(MARK)
    texts, own = list[str](), list[Any]()
    for part in value:
        kind = part.get("type", "text") if isinstance(part, Mapping) else None
        if kind in PARTS:
            image = next((part[key] for key in KEYS if part.get(key)), None)
            texts.append(MARK)
            own.append(image["url"] if isinstance(image, Mapping) and "url" in image else image)
            continue
        if kind != "text":
            raise ValueError(f"{what} holds more than text and images; audio and video are not read")
        texts.append(text_of(part.get("text"), what))
        own += [None] * texts[-1].count(MARK)
    return "".join(texts), own
