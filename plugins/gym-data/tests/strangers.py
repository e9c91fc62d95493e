"""A package of somebody else: real modules and metadata in a folder on `sys.path`, found as any installed one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gym_data import provenance
from gym_testkit.metadata_files import installed_in, write_distribution

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


@contextmanager
def installed(
    site: Path,
    dist: str = "gym-acme",
    package: str = "gym_acme",
    version: str = "1.0",
    library: str = "3.0",
    changed: Mapping[str, str] | None = None,
    table: str = "{}",
) -> Iterator[None]:
    """Install the package, with texts of its code changed, and a library that it requires; for the time of the block.

    `table` is what a file beside its code holds.
    """
    folder = site / package
    folder.mkdir(parents=True)
    for name, text in (("__init__", SOURCE), ("impl", IMPLEMENTATION)):
        for old, new in (changed or {}).items():
            text = text.replace(old, new)
        (folder / f"{name}.py").write_text(text.replace("gym_acme", package))
    (folder / "table.json").write_text(table)
    points = "".join(f"[{group}]\n{point}\n" for group, point in POINTS.items()).replace("gym_acme", package)
    write_distribution(site, dist, points, requires=["acme-lib"], version=version)
    write_distribution(site, "acme-lib", {}, version=library)
    provenance.read_maker.cache_clear()
    with installed_in(site):
        yield
    provenance.read_maker.cache_clear()
