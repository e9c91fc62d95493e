"""Whose an option is that no selected component has: asked in another process, since nobody selected what is imported for it.

A plugin that ends or holds up that process costs others no more than this advice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gym_core.discovery import entries
from gym_core.errors import PluginError
from gym_core.loading import load_component
from gym_core.metadata import read_file
from gym_core.sections import SECTION_OF

SECONDS = 20.0  #: that all plugins together may take


class Owner(NamedTuple):
    """A component, how many classes it inherits from, and one of its options."""

    kind: str
    dist: str
    name: str
    depth: int
    key: str


@cache
def owners() -> list[Owner]:
    """Return all options of the components that sections can name, as far as they can be imported."""
    quiet = subprocess.DEVNULL
    path = {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path), "GYM_IMPORT_SECONDS": "5"}
    with tempfile.NamedTemporaryFile() as answer, suppress(OSError, ValueError):
        command = [sys.executable, "-P", "-m", "gym_core.owners", answer.name]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command, stdin=quiet, stdout=quiet, stderr=quiet, env=os.environ | path, timeout=SECONDS, check=False
            )
        rows = [row for line in read_file(answer.name).decode().splitlines() if len(row := line.split()) == 5]
        return [Owner(kind, dist, name, int(depth), key) for kind, dist, name, depth, key in rows]
    return []


def main(answer: str) -> None:
    """Write a line for each option to a file, component by component, and end without waiting for threads."""
    with Path(answer).open("w", encoding="utf-8") as file:
        for entry in (entry for kind in SECTION_OF for entry in entries(kind)):
            with suppress(PluginError):
                cls = load_component(entry.kind, entry.qualified)[1]
                for key in cls.model_fields:
                    print(entry.kind, entry.dist, entry.name, len(cls.__mro__), key, file=file)
            file.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
