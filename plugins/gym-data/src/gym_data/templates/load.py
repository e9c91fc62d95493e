"""Reading the text of a named template."""

from __future__ import annotations

from pathlib import Path

from gym_data.templates import JinjaFile


def read(config: JinjaFile) -> str:
    """Return the text of the template."""
    return (Path(__file__).parent / config.file).read_text(encoding="utf-8")
