"""How values of a dialect become those of options. Each raises ValueError that says why not; None sets nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

NOT = {True: False, False: True}  #: for keys that say the opposite of the option


def note(text: str) -> None:
    """Tell the user what becomes of a key that means something else here."""
    sys.stderr.write(f"note: {text}\n")


def unread(value: Any) -> None:
    """Take a key that changes no result here."""


def or_unset(value: Any) -> Any:
    """Take 0 and an empty text for `not set`."""
    return value or None


def positive(value: Any) -> Any:
    """Take -1 and 0 for `not set`."""
    return value if int(value) > 0 else None


def number(value: Any) -> float | None:
    """Read a number of which 0 means `not set`."""
    return float(value) or None


def refused(advice: str) -> Callable[[Any], None]:
    """Return a conversion for a key that may say false, and nothing else; `advice` is why, and what to do."""

    def said(value: Any) -> None:
        if value not in (False, None, "false"):
            raise ValueError(advice)

    return said


def names(value: Any) -> Any:
    """Split a comma list."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def numbers(value: Any) -> list[float]:
    """Split a comma list of numbers."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    return [float(part) for part in parts]


def only(*meant: Any) -> Callable[[Any], None]:
    """Return a conversion for a key that may say, in one of these ways, what is done anyway, and nothing else."""

    def said(value: Any) -> None:
        if value not in meant:
            raise ValueError(f"only `{meant[0]}` is done here, not `{value}`")

    return said


def if_it_says(meant: str) -> Callable[[Any], bool | None]:
    """Return a conversion that is true for one value, and leaves the option as it is for all others."""
    return lambda value: True if str(value).lower() == meant else None


def switched(value: Any) -> bool:
    """Take a boolean. Raises ValueError for anything else."""
    if not isinstance(value, bool):
        raise ValueError(f"is true or false, not `{value}`")
    return value


def entry(name: str, section: str) -> Callable[[Any], Any]:
    """Return a conversion that takes the one entry of a mapping; `section` is what to write where there are others."""

    def taken(options: Any) -> Any:
        if isinstance(options, Mapping) and [*options] == [name]:
            return options[name]
        raise ValueError(f"write the section out: `{section}`")

    return taken
