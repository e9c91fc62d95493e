"""A package of somebody else: real modules and metadata in a folder on `sys.path`, found as any installed one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gym_core import discovery, loading
from gym_data import provenance

SOURCE = '''
"""Rows, a format and a template of somebody else."""
import json
from typing import ClassVar
from gym_data import Format, Source, Template

class Table(Source):
    """A table."""
    target: ClassVar[str] = "gym_acme.impl:Rows"
    rows: int = 3
    """How many rows there are."""

class Poem(Format):
    """A question and the verse that answers it."""
    target: ClassVar[str] = "gym_acme.impl:Reader"
    verse: str = "verse"
    """Column of the verse."""

class Plain(Template):
    """User and assistant, line by line."""
    target: ClassVar[str] = "gym_acme.impl:template"
    needs: ClassVar[tuple[str, ...]] = ()
'''
IMPLEMENTATION = """
from gym_data.rows import Conversation

class Rows:
    def __init__(self, config):
        self.config = config
    def rows(self):
        return ({"ask": f"say {i}", "verse": f"a {i}"} for i in range(self.config.rows))
    def fingerprint(self):
        return "always the same"

class Reader:
    def __init__(self, config):
        self.config = config
    def convert(self, row):
        if self.config.verse not in row:
            raise ValueError("the row holds no verse")
        said = ({"role": "user", "content": row["ask"]}, {"role": "assistant", "content": row[self.config.verse]})
        return Conversation(said)

def template(config):
    turns = "{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}"
    return turns + "{% if add_generation_prompt %}assistant: {% endif %}"
"""
POINTS = {
    "gym.sources": "table = gym_acme:Table",
    "gym.formats": "poem = gym_acme:Poem",
    "gym.templates": "plain = gym_acme:Plain",
}


def forget() -> None:
    """Make the next look at the installation a fresh one."""
    for cached in (discovery.installed, loading.load, loading.base_class, provenance.read_maker):
        cached.cache_clear()
    for module in [name for name in sys.modules if name.partition(".")[0] in ("gym_acme", "gym_other", "acme_lib")]:
        del sys.modules[module]


@contextmanager
def installed(
    site: Path,
    dist: str = "gym-acme",
    package: str = "gym_acme",
    version: str = "1.0",
    library: str = "3.0",
    changed: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Install the package, with texts of its code changed, and a library that it requires; for the time of the block."""
    folder = site / package
    folder.mkdir(parents=True)
    for name, text in (("__init__", SOURCE), ("impl", IMPLEMENTATION)):
        for old, new in (changed or {}).items():
            text = text.replace(old, new)
        (folder / f"{name}.py").write_text(text.replace("gym_acme", package))
    points = "".join(f"[{group}]\n{point}\n" for group, point in POINTS.items()).replace("gym_acme", package)
    metadata(site, dist, version, "Requires-Dist: acme-lib\n", points)
    metadata(site, "acme-lib", library)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        forget()
        try:
            yield
        finally:
            patch.undo()
            forget()


def metadata(site: Path, dist: str, version: str, more: str = "", points: str = "") -> None:
    """Write what pip would have written."""
    info = site / f"{dist.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {dist}\nVersion: {version}\n{more}\n")
    if points:
        (info / "entry_points.txt").write_text(points)
