"""Which parameter of a request a server refuses, by what it says: some models take no `temperature`, some servers no `seed`."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any

#: Parameters that may be left out: answers are drawn another way, and cost no more. Where several are named, the first goes.
LEAVABLE = ("top_p", "seed", "temperature")
LONGEST = 4000  #: bytes of a reply that are looked at


def refused_parameter(body: bytes, asked: Container[str]) -> str:
    """Return the one of LEAVABLE that was asked for and that a reply names, or nothing.

    Where the reply says in `param` what is wrong, as OpenAI does, nothing else counts.
    """
    text = body[:LONGEST].decode("utf-8", "replace")
    said = error_field(text, "param")
    named = {said} if said else set(re.findall(r"\w+", text))
    return next((name for name in LEAVABLE if name in named and name in asked), "")


def error_field(text: str, name: str) -> str:
    """Return the text that stands in `error`, or nothing where a reply has no such field."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    error = found.get("error") if isinstance(found, dict) else None
    said = error.get(name) if isinstance(error, dict) else None
    return said if isinstance(said, str) else ""
