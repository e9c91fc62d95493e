"""What a server says that a reply used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_training_free.endpoint.ledger import Usage

MOST = 2**53  #: tokens; a count above it is none


def counted(found: Mapping[str, Any], needed: str) -> Usage | None:
    """Return what a reply says that it used; None where it does not, or leaves the count that is needed out.

    Some servers count what a model thought in the total alone.
    """
    try:
        used = found["usage"]
        cached = (used.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        prompt = int(used["prompt_tokens"])
        int(used[needed])
        output = max(int(used.get("completion_tokens") or 0), _number(used.get("total_tokens")) - prompt)
        made = Usage(prompt, output, min(int(cached), prompt))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    return made if min(made.input, made.output, made.cached) >= 0 and made.total <= MOST else None


def _number(value: Any) -> int:
    """Return a number of tokens; 0 where it is none."""
    return value if isinstance(value, int) else 0
