"""Rows that hold texts as the model reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_data.formats import Segments
from gym_data.formats.parsing import UntrainableRowError, load_json, text_of
from gym_data.rows import Segmented


class SegmentsReader:
    """Makes segments of a row."""

    def __init__(self, config: Segments) -> None:
        """Hold the column name."""
        self.config = config

    def convert(self, row: Mapping[str, Any]) -> Segmented:
        """Return the texts and which of them are learnt.

        Raises ValueError where a segment lacks either, UntrainableRowError where none is learnt.
        """
        name = self.config.segments
        raw = row.get(name)
        raw = load_json(raw, f"column `{name}`") if isinstance(raw, str) else raw
        if not isinstance(raw, list):
            raise ValueError(f"column `{name}` holds no list of segments")
        parts = tuple(_part(entry, f"segment {number}") for number, entry in enumerate(raw, 1))
        if not any(learnt for _, learnt in parts):
            raise UntrainableRowError("no segment is to be learnt")
        return Segmented(parts)


def _part(entry: Any, what: str) -> tuple[str, bool]:
    if not isinstance(entry, Mapping):
        raise ValueError(f"{what} is not an object")
    if not isinstance(entry.get("label"), bool):
        raise ValueError(f"the label of {what} is not true or false")
    return text_of(entry.get("text"), f"the text of {what}"), entry["label"]
