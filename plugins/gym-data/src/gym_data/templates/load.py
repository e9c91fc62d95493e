"""Reading the text of a named template."""

from __future__ import annotations

from pathlib import Path

from gym_data.templates import Jinja, JinjaFile


def read(config: JinjaFile) -> str:
    """Return the text of the template."""
    return (Path(__file__).parent / config.file).read_text(encoding="utf-8")


def given(config: Jinja) -> str:
    """Return the text that the recipe holds."""
    return config.text
