"""Rows of plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_data.formats import Text
from gym_data.formats.media import no_media
from gym_data.formats.parsing import filled
from gym_data.rows import Text as Document


class TextReader:
    """Makes a document of a row."""

    def __init__(self, config: Text) -> None:
        """Hold the column name."""
        self.config = config

    def convert(self, row: Mapping[str, Any]) -> Document:
        """Return the text. Raises ValueError where there is none."""
        no_media(row)
        return Document(filled(row.get(self.config.text), f"the text (column `{self.config.text}`)"))
