"""Keys that choose nothing and fill no option: what they may say, and what is to be said of any other value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Stated(NamedTuple):
    """A key that may say what is done anyway."""

    values: tuple[Any, ...] = ()  #: those that are taken; none: any value is, as it changes no result
    why: str = "is not supported"  #: why no other value is; where any value is taken, why it changes nothing
    fix: str = ""
    note: str = ""  #: printed where the key says something else than false


OFF = (False, None)  #: what a switch may say that is not here


def unread(why: str, keys: Iterable[str]) -> dict[str, Stated]:
    """Return keys that may say anything, for one reason."""
    return {key: Stated(why=why) for key in keys}


def refused(values: tuple[Any, ...], why: str, fix: str, keys: Iterable[str]) -> dict[str, Stated]:
    """Return keys that may say these values alone, for one reason."""
    return {key: Stated(values, why, fix) for key in keys}
