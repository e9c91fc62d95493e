"""A progress line for work that takes long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Item = TypeVar("Item")
STEP = 100  #: items between two updates


def counted(items: Iterable[Item], what: str) -> Iterator[Item]:
    """Yield the items and count them on the terminal; silent where standard error is none."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        for number, item in enumerate(items, 1):
            yield item
            if number % STEP == 0:
                progress.update(task, completed=number)
