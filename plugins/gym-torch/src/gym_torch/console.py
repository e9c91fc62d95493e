"""Where the engine talks to people: standard error, so that what commands print for machines stays clean."""

from __future__ import annotations

import os

from rich.console import Console

#: Of several processes (torchrun numbers them in RANK) the first one speaks.
console = Console(stderr=True, highlight=False, quiet=os.environ.get("RANK", "0") != "0")


def say(text: str) -> None:
    """Print a line."""
    console.print(text, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """Print a line that asks for attention."""
    console.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)
