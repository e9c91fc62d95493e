"""The processes that work on one run, seen from one of them. How they find each other is the strategy's business."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar

T = TypeVar("T")


class Ranks:
    """One process alone. A strategy builds a subclass for more; an error that leaves this context ends the others too."""

    main = True  #: whether this is the one process that locks the output, writes the record, exports and prints

    def agree(self, work: Callable[[], T]) -> T:
        """Return in every process what `work` returns in the main one, plain data; the others wait and do not call it."""
        return work()

    def at(self, place: str) -> None:
        """Say where this process stands, for the error should it die or come late; empty: it may take its time."""

    def __enter__(self) -> Self:
        """Enter, once or again inside."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Leave."""
