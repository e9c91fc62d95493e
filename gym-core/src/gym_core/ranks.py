"""The processes of a run, as one of them sees them. Strategies connect them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar

T = TypeVar("T")


class Ranks:
    """A single process. A strategy builds a subclass for several; an error that leaves this context ends all of them."""

    main = True  #: whether this is the one process that locks the output, writes the record, exports and prints

    def agree(self, work: Callable[[], T]) -> T:
        """Call `work` in the main process only, and return its result, plain data, in every process."""
        return work()

    def at(self, place: str) -> None:
        """Set what this process is doing, for the error if it dies or is late; an empty string sets no time limit."""

    def __enter__(self) -> Self:
        return self  # also where it is entered again inside

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Leave."""
