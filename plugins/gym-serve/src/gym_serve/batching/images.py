"""Images in the messages of a request: parts of contents, which a template is shown, and images that a reader of them finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gym_data.chat.loss_masks import Rendered
from gym_data.media import MediaReader, Medium, placed
from gym_data.rows import Named
from gym_serve.contract import Request
from gym_serve.errors import BadRequest
from gym_serve.images import Message, named_in
from gym_serve.on_disk import OnDisk


def found(request: Request, reader: MediaReader | None, most: int) -> list[Medium]:
    """Return the images of a request in order.

    Raises BadRequest where they are more than `most` or nothing reads them, and ValueError where one is no image.
    """
    named = named_in(request)
    if named and reader is None:
        raise BadRequest("no images are read for this model", key="messages")
    if len(named) > most:
        raise BadRequest(f"there are {len(named)} images, and at most {most} are read (`max_images`)", key="messages")
    if reader is None:
        return []
    return [
        reader.found(Named("image", each.named), each.folder) if isinstance(each, OnDisk) else reader.sent(each)
        for each in named
    ]


def in_parts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as templates of models that read images are shown them: a text is one part, whatever it spells out."""
    return [_in_parts(message) for message in messages]


def shown(rendered: Rendered, reader: MediaReader, images: Sequence[Medium]) -> Rendered:
    """Return a text that a template wrote with what stands for each image. Raises ValueError where it does not show them all."""
    text, those = placed(rendered, reader, images, reader.written(images) if images else [])
    if len(those) < len(images):
        raise ValueError(f"the chat template shows {len(those)} of {len(images)} images")
    return text


def _in_parts(message: Message) -> dict[str, Any]:
    content = message.get("content") or ""
    if message["role"] == "assistant":
        return dict(message)
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": [{"type": "image"} if part["type"] == "image" else part for part in parts]}
