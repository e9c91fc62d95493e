"""What docs/cli.md and docs/recipe.md say is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import gym_core
from gym_core import errors, yamlfile
from gym_core.cli import cli
from gym_core.sections import SECTIONS, SLOTS

DOCS = Path(__file__).parents[2] / "docs"


def first_cells(text: str, column: int = 0) -> list[str]:
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [row[column].strip() for row in rows[1:]]


def test_exit_codes():
    table = (DOCS / "cli.md").read_text().partition("## Exit codes")[2].partition("##")[0]
    written = dict(
        zip(re.findall(r"`(\w+)`", " ".join(first_cells(table, 1))), map(int, first_cells(table)), strict=True)
    )
    assert written == {name: value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}


def test_commands():
    commands = (DOCS / "cli.md").read_text().partition("## Exit codes")[0]
    named = {re.match(r"`gym (\w+)", cell).group(1) for cell in first_cells(commands)}
    own = {
        name
        for name in cli.list_commands(None)
        if cli.get_command(None, name).callback.__module__.startswith("gym_core.")
    }
    catalogue = (Path(gym_core.__file__).parent / "catalogue.txt").read_text()
    assert own <= named
    assert all(f"commands/{name} " in catalogue for name in named - own)


def test_sections():
    table = (DOCS / "recipe.md").read_text().partition("## Sections")[2].partition("\n## ")[0]
    assert sorted(cell.strip("`") for cell in first_cells(table)) == sorted(SECTIONS)
    selectors = dict(zip(first_cells(table), first_cells(table, 2), strict=True))
    assert {name: selectors[f"`{name}`"].strip("`") for name in SLOTS} == {
        name: slot.selector for name, slot in SLOTS.items()
    }


def test_limits():
    text = " ".join((DOCS / "recipe.md").read_text().split())
    assert f"deeper than {yamlfile.MAX_DEPTH} levels" in text
    assert f"more than {yamlfile.MAX_SIZE:,} values" in text
    assert f"larger than {yamlfile.MAX_BYTES >> 20} MB" in text
