"""A source and a format of a stranger's package, built and installed: they get what ours get, and errors name them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "gym-acme"
version = "1.0"
dependencies = ["gym-data"]

[project.entry-points."gym.sources"]
ledger = "gym_acme:Ledger"

[project.entry-points."gym.formats"]
entry = "gym_acme:Entry"

[tool.hatch.build.targets.wheel]
packages = ["src/gym_acme"]
"""
CONFIG = '''
from typing import ClassVar
from gym_data import Format, Source

class Ledger(Source):
    """Rows of a ledger."""
    target: ClassVar[str] = "gym_acme.reading:Rows"
    lines: int = 3
    """How many lines it has."""

class Entry(Format):
    """A sum and what it comes to."""
    target: ClassVar[str] = "gym_acme.reading:Reader"
    total: str = "total"
    """Column of the total."""
'''
READING = """
from gym_data.rows import Conversation

class Rows:
    def __init__(self, config):
        self.config = config
    def rows(self):
        return ({"sum": f"{i} + {i}", "total": str(2 * i)} for i in range(self.config.lines))
    def fingerprint(self):
        return str(self.config.lines)

class Reader:
    def __init__(self, config):
        self.config = config
    def convert(self, row):
        if not row.get(self.config.total):
            raise ValueError("the sum has no total")
        answer = {"role": "assistant", "content": "It is " + row[self.config.total]}
        return Conversation(({"role": "user", "content": row["sum"]}, answer))
"""
SOURCE = {"name": "ledger", "read_as": "entry", "samples": 5}
RECIPE = {"model": "tiny", "algorithm": "sft", "data": {"sources": [SOURCE]}}


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stranger") / "gym-acme"
    (folder / "src/gym_acme").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "src/gym_acme/__init__.py").write_text(CONFIG)
    (folder / "src/gym_acme/reading.py").write_text(READING)
    (folder / "recipe.json").write_text(json.dumps(RECIPE))
    return folder


@pytest.fixture(scope="module")
def preview(package, installed):
    """Preview the recipe with the package installed."""
    run = installed(package)
    return lambda *more: run("gym_core.cli", "data", "preview", "recipe.json", "--json", "--count", "9", *more)


def said(done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [run["text"] for example in json.loads(done.stdout)["examples"] for run in example["runs"] if run["trained"]]


def test_it_is_read_drawn_from_and_named(package, preview):
    first = preview()
    assert len(said(first)) == 5 and all(text.startswith("It is") for text in said(first))
    assert {each["id"] for each in json.loads(first.stdout)["examples"]} == {"ledger:1", "ledger:2", "ledger:3"}
    wrong = preview("data.sources=[{name: ledger, read_as: {name: entry, total: missing}}]")
    assert wrong.returncode == 4
    assert json.loads(wrong.stdout)["problems"] == [
        {
            "where": "ledger (format `entry` of gym-acme 1.0)",
            "key": "",
            "why": "row 1: the sum has no total",
            "fix": "mend the row, or leave such rows out with `data.bad_rows: skip`",
        }
    ]


def test_its_next_version_makes_its_tokens_anew(package, preview):
    before = preview()  # by the test above, so it is in the cache
    assert len(said(before)) == 5 and json.loads(before.stdout)["report"]["cached"]
    site = package.parent / "gym-acme-site"
    code = site / "gym_acme/reading.py"
    code.write_text(code.read_text().replace("It is ", "That makes "))
    (metadata,) = site.glob("gym_acme-*.dist-info/METADATA")
    metadata.write_text(re.sub("^Version: .*$", "Version: 1.1", metadata.read_text(), flags=re.MULTILINE))
    after = preview()
    assert all(text.startswith("That makes") for text in said(after))
