"""Follows the tutorials as a reader does: writes their files, runs their commands, and compares what is printed.

Run by `nox -s tutorials` in an environment that holds what the tutorials say to install, and nothing more.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

PAGES = sorted(path for path in Path(__file__).parents[1].glob("docs/tutorials/*.md") if path.stem != "README")
_FENCE = re.compile(r"^```(\w+)(?: title=\"([\w.-]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"\d[\d.,]*(e-?\d+)?")


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    title: str  #: the file it is written to; empty for what is run or was printed
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [Block(*found) for found in _FENCE.findall(page.read_text(encoding="utf-8"))]


def follow(page: Path, folder: Path) -> list[str]:
    """Do what a page says, in `folder`; return what went otherwise than it says."""
    wrong, printed, checked = [], "", 0
    for block in blocks(page):
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "bash":
            for line in block.text.splitlines():
                if line.startswith("python -m pip install "):
                    continue  # the session did
                if line.startswith("mkdir "):
                    continue  # `folder` it is
                words = shlex.split(line)
                words[0] = sys.executable if words[0] == "python" else words[0]
                done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=900)
                printed += done.stdout + done.stderr
                if done.returncode:
                    wrong.append(f"`{line}` ended with {done.returncode}:\n{printed[-2000:]}")
        elif block.language == "text":
            said = {_masked(line) for line in printed.splitlines()}
            wrong += [
                f"nothing printed is like: {line}" for line in block.text.splitlines() if _masked(line) not in said
            ]
            printed, checked = "", checked + 1
    return wrong if checked else [*wrong, "the page shows nothing that is printed"]


def _masked(line: str) -> str:
    """Return a line without the values of its numbers, which depend on the machine, and without the blanks around it."""
    return _NUMBER.sub("#", re.sub(r"\s+", " ", line)).strip()


if __name__ == "__main__":
    failed = False
    for page in PAGES:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            wrong = follow(page, Path(folder))
        print(f"{page.stem}: {'as it says' if not wrong else ''} {time.monotonic() - began:.0f} s", *wrong, sep="\n  ")
        failed |= bool(wrong)
    sys.exit(failed)
