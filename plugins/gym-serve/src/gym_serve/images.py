"""Images of a request, as whoever asks names them. An engine reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gym_data.rows import MARK
from gym_serve.contract import Request, ServedModel
from gym_serve.errors import BadRequest
from gym_serve.on_disk import OnDisk

Message = Mapping[str, Any]


def named_in(request: Request) -> list[str | OnDisk]:
    """Return the images of a request in order: those in its messages, or those that stand in its tokens."""
    contents = [each["content"] for each in request.messages or () if isinstance(each.get("content"), list)]
    found = [part["image"] for content in contents for part in content if part["type"] == "image"]
    return [*found, *request.images]


def check(request: Request, model: ServedModel) -> None:
    """Raise BadRequest for a request with images to a model that reads none."""
    if not model.images and named_in(request):
        why = "no images are read for this model; where it can, the option `media=vision` does"
        raise BadRequest(why, key="messages")


def with_parts(messages: Sequence[Message], images: Sequence[Any], folder: Path) -> list[dict[str, Any]]:
    """Return messages in whose contents the images of a row stand as parts, in the place of each `<image>`."""
    left = iter(images)
    return [_with_parts(message, left, folder) if images else dict(message) for message in messages]


def _with_parts(message: Message, images: Any, folder: Path) -> dict[str, Any]:
    first, *others = message["content"].split(MARK)
    if not others:
        return dict(message)
    parts = _text(first)
    for text in others:
        parts += [{"type": "image", "image": OnDisk(next(images), folder)}, *_text(text)]
    return {**message, "content": parts}


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []
