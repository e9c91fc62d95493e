"""What the scheduler asks of an engine that decodes rows; `gym_torch.generation.decoding.Decoding` is one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from gym_torch.generation.row import Row


class PartialPrefill(Protocol):
    """A long prompt of which the first tokens are computed."""

    rows: Sequence[Row]

    @property
    def left(self) -> int:
        """How many tokens of the prompt are not computed yet."""
        ...


class RowDecoder(Protocol):
    """Decodes the rows of one model, which enter and leave between steps."""

    rows: list[Row]

    def admit(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Run the prompts of new rows, and choose a token for each; return them in any order."""
        ...

    def begin(self, rows: Sequence[Row]) -> Any:
        """Return a `PartialPrefill` of rows with the same prompt; nothing is computed yet."""
        ...

    def advance(self, begun: Any, count: int) -> None:
        """Compute `count` more tokens of a prompt, fewer than are left."""
        ...

    def finish(self, begun: Any) -> Sequence[Row]:
        """Compute the rest of a prompt, add its rows, and choose a token for each; return them."""
        ...

    def step(self) -> Sequence[Row]:
        """Choose a token for every row, or for some; return those. Rows that it ends have left `rows`."""
        ...

    def drop(self, rows: Collection[Row]) -> None:
        """Remove rows from the batch and free their memory; rows that left already are ignored."""
        ...
