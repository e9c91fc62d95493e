"""Rows that remember which of their columns were read, so that text in the others does not go missing without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class TrackedRow(Mapping[str, Any]):
    """A row, and the names that somebody asked it for."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        """Hold the row."""
        self._row = row
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        """Return a column, and note that it was read."""
        self.read.add(name)
        return self._row[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all columns."""
        return iter(self._row)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self._row)

    @property
    def unread(self) -> set[str]:
        """Columns with text that nobody has read."""
        return {str(name) for name, value in self._row.items() if name not in self.read and _holds_text(value)}


def _holds_text(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, Mapping):
        return any(map(_holds_text, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds_text, value))
