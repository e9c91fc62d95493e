"""Messages for people on standard error, so that standard output has only the results of commands."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def console() -> Console:
    """Return standard error as rich knows it. Components import this module, and none needs rich to be named."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Print a line, in the first of several processes (torchrun numbers them in RANK)."""
    if os.environ.get("RANK", "0") == "0":
        console().print(text, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """Print a line that asks for attention, likewise."""
    if os.environ.get("RANK", "0") == "0":
        console().print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)
