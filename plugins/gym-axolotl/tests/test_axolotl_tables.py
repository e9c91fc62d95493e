"""The tables: every row leads to an option that is there, every key of axolotl has one, and other packages' tables count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_axolotl.stated import STATED
from gym_axolotl.table import KIND
from gym_axolotl.translation import DIALECT, translate
from gym_core import RecipeError, load_recipe
from gym_core.component import Config
from gym_core.loading import load_component
from gym_core.sections import SECTION_OF, SLOTS, Findings
from gym_core.train import Train
from gym_dialect import Key, table
from gym_testkit.metadata_files import installed_in, write_distribution

BASE = {"base_model": "tiny", "datasets": [{"path": "rows.jsonl", "type": "alpaca"}], "learning_rate": 1e-4}


def component(section: str, name: str) -> type[Config]:
    return Train if section == "train" else load_component(SLOTS[section].kind, name)[1]


@pytest.mark.parametrize("row", DIALECT.table.keys, ids=lambda row: f"{row.key}-{row.option}")
def test_every_row_leads_to_an_option(row: Key) -> None:
    for name in row.of.split() or [row.section]:
        assert row.name in component(row.section, name).model_fields, f"{row.section} `{name}` has no `{row.name}`"


def test_every_choice_leads_to_a_component() -> None:
    for rows in DIALECT.table.choosing().values():
        for _, row in rows:
            assert row.section in SECTION_OF.values()
            for name in {*row.names.values(), row.default} - {""}:
                component(row.section, name)
            keys = {other for names in row.yields.values() for other in names.split()}
            assert keys <= DIALECT.table.choosing().keys(), "a key that it yields to chooses nothing"
            assert not set(row.refused) & set(row.names)


def test_every_key_of_theirs_is_accounted_for() -> None:
    """`record_keys.py` wrote their names down."""
    theirs = set((Path(__file__).parent / "keys.txt").read_text().split())
    assert len(theirs) > 450 and sorted(theirs - DIALECT.known()) == ["quantization"]  # a section


def problems(key: str, value: object) -> list[tuple[str, str]]:
    """Return what is noted about a key."""
    found = Findings()
    holder, _, inner = key.partition(".")
    translate({**BASE, holder: {inner: value} if inner else value}, found)
    return [(problem.key, problem.why) for problem in found.problems]


def test_a_stated_key_is_taken_or_refused_with_what_to_do() -> None:
    for key, stated in STATED.items():
        for value in stated.values or (True, "any"):
            assert not problems(key, value), key
        if stated.values:
            assert stated.fix and not stated.fix.endswith("."), key
            assert problems(key, "something else") == [(key, stated.why)]
        else:
            assert stated.why and not stated.fix, key


STRANGER = '''
from gym_adapters import LoRA
from gym_axolotl import Keys
from gym_dialect import Choice, Key

class Mine(LoRA):
    """An adapter."""

class MineKeys(Keys):
    """Its keys."""
    choices = (Choice("adapter", "adapter", {"mine": "mine"}),)
    keys = (Key("mine_rank", "adapter.rank", "mine", default=3),)
'''


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[None]:
    """A package with an adapter, and a table of keys for it."""
    points = {"gym.adapters": {"mine": "gym_mine_too:Mine"}, "gym.axolotl_keys": {"mine": "gym_mine_too:MineKeys"}}
    write_distribution(tmp_path, "gym-mine-too", points, {"gym_mine_too": STRANGER})
    table.installed.cache_clear()
    with installed_in(tmp_path):
        yield
    table.installed.cache_clear()


@pytest.mark.usefixtures("stranger")
def test_a_strangers_table_counts_as_ours_do() -> None:
    assert DIALECT.kind == KIND
    found = load_recipe({**BASE, "adapter": "mine"}).adapter
    assert found is not None and found.model_dump(include={"rank"}) == {"rank": 3}
    with pytest.raises(RecipeError, match="belongs to adapter `mine` \\(gym-mine-too\\)"):
        load_recipe({**BASE, "mine_rank": 5})
