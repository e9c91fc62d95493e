"""Rows of plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_data.formats import Text
from gym_data.formats.media import media_of
from gym_data.formats.parsing import filled
from gym_data.rows import Text as Document


class TextReader:
    """Makes a document of a row."""

    def __init__(self, config: Text) -> None:
        """Hold the column name."""
        self.config = config

    def convert(self, row: Mapping[str, Any]) -> Document:
        """Return the text. Raises ValueError where there is none."""
        if media := media_of(row):
            raise ValueError(f"it has {media[0].medium}s, which are not read here")
        return Document(filled(row.get(self.config.text), f"the text (column `{self.config.text}`)"))
