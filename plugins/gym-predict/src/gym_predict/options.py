"""The options of `gym predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gym_serve.answer_options import DrawingOptions

RUNNING = {
    "queue",
    "max_batch",
    "prefix_cache_bytes",
    "tenant_bytes",
    "tenant_cache_bytes",
    "at_once",
    "output",
}
"""Options that change no answer."""


class PredictOptions(DrawingOptions):
    """Which rows are answered, how, and where the answers are written."""

    rows: Literal["validation", "all"] = "validation"
    """The rows that the recipe holds out, or all of its rows."""
    output: Path | None = None
    """Folder to write; by default `predict` in that of the run."""
    max_tokens: Annotated[int, Field(ge=1)] | None = 512
    """Most tokens of an answer (`max_new_tokens` in transformers)."""
    at_once: Annotated[int, Field(ge=1)] = 256
    """Rows that are asked at the same time."""
    seed: int | None = 0
    """The same seed gives the same answers, also where the command is stopped and continued."""
