"""A source that is ready to be read, with the format of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gym_core import Component, PluginError
from gym_data.kinds import Format, Rows, Source
from gym_data.provenance import answering, called, identity


@runtime_checkable
class RegisteredRows(Protocol):
    """Rows of a source that was told more of them than its options say, such as by a registry of datasets."""

    format: Format | None  #: their format
    samples: int | None  #: how many of them are wanted


def registered(rows: Rows) -> RegisteredRows | None:
    """Return rows of which a registry told more, and None for any others."""
    return rows if isinstance(rows, RegisteredRows) else None


@runtime_checkable
class RowsOfFiles(Protocol):
    """Rows of a source that reads files."""

    files: Sequence[Path]


@dataclass(frozen=True)
class Opened:
    """A source, ready to be read, and the format of its rows."""

    name: str
    source: Source
    rows: Rows
    format: Format
    samples: int | None

    @property
    def folder(self) -> Path:
        """Return the folder in which relative paths of its rows begin: that of its first file, or the working directory."""
        return self.rows.files[0].parent if isinstance(self.rows, RowsOfFiles) else Path()

    def identity(self) -> dict[str, Any]:
        """Return what decides the structured rows, as plain data."""
        with answering(self.source, "`fingerprint`", self.name):
            content = self.rows.fingerprint()
        if not isinstance(content, str):
            raise self.fault(self.source, f"`fingerprint` returned {type(content).__name__}, and must return a text")
        return {
            "name": self.name,
            "source": identity(self.source),
            "rows": content,
            "format": identity(self.format),
            "samples": self.samples,
        }

    def read(self, most: int | None = None) -> Iterator[Mapping[str, Any]]:
        """Yield the rows, at most so many."""
        with answering(self.source, "reading rows", self.name):
            for row in islice(self.rows.rows(), most):
                if not isinstance(row, Mapping):
                    raise self.fault(self.source, f"it yields {type(row).__name__} where a row is a mapping of columns")
                yield row

    @property
    def where(self) -> str:
        """Return the name and what reads the rows, for errors."""
        return f"{self.name} ({called(self.format)})"

    def fault(self, component: Component, why: str) -> PluginError:
        """Return the error of a component that does not do what its kind promises."""
        who = called(component)
        return PluginError(why, where=f"{self.name} ({who})", fix=f"report it to {who.partition('` of ')[2]}")
