"""Short requests to an engine, and what comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gym_serve.contract import Piece, Request, Sampling

LONGEST = 16
GREEDY = Sampling(max_tokens=LONGEST, temperature=0.0)


def asking(text: str = "3 + 4?", **sampling: Any) -> Request:
    """Return a request for a greedy reply of the model `tiny`; `sampling` replaces fields of `Sampling`."""
    return Request("tiny", messages=[{"role": "user", "content": text}], sampling=replace(GREEDY, **sampling))


async def pieces(engine: Any, request: Request) -> list[Piece]:
    """Return all pieces of a reply."""
    return [piece async for piece in engine.submit(request)]


async def text(engine: Any, request: Request) -> str:
    """Return the text of a reply."""
    return "".join(piece.text for piece in await pieces(engine, request))
