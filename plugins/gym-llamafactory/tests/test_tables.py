"""The tables: every row leads to an option that is there, and other packages' tables count as ours do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_core import RecipeError, load_recipe
from gym_core.component import Config
from gym_core.dialect import chosen_names
from gym_core.loading import load_component
from gym_core.sections import SECTION_OF, SLOTS, Findings
from gym_core.train import Train
from gym_dialect import Key, table
from gym_llamafactory.stated import STATED
from gym_llamafactory.table import KIND
from gym_llamafactory.tracking import KEYS as TRACKED
from gym_llamafactory.translation import HOLDING, TOP, translate
from gym_testkit.metadata_files import installed_in, write_distribution

BASE = {"model_name_or_path": "tiny", "dataset": "identity", "stage": "sft"}


def problems(key: str, value: object) -> list[tuple[str, str]]:
    """Return what is noted about a key."""
    found = Findings()
    translate(BASE | {key: value}, found)
    return [(problem.key, problem.why) for problem in found.problems]


def test_a_stated_key_is_taken_or_refused_with_what_to_do() -> None:
    names = chosen_names(translate(BASE, Findings()))
    options = {row.key for row in table.installed(KIND).filling(names)} | {*table.installed(KIND).choosing()}
    assert not options & STATED.keys(), "it fills an option of such a file, or chooses, too"
    for key, stated in STATED.items():
        for value in stated.values or (True, "any"):
            assert not problems(key, value), key
        if stated.values:
            assert stated.fix and not stated.fix.endswith("."), key
            assert problems(key, "something else") == [(key, stated.why)]
        else:
            assert stated.why and not stated.fix, key


def test_every_key_of_theirs_is_accounted_for() -> None:
    """`record_keys.py` wrote their names down: 268 of LLaMA-Factory itself, 149 of transformers."""
    rows = table.installed(KIND)
    known = {*TOP, *HOLDING, *TRACKED, *STATED, *rows.choosing(), *Train.model_fields}
    known |= {key for row in rows.keys for key in (row.key, *row.together.split())}
    recorded = [line.partition(": ") for line in (Path(__file__).parent / "keys.txt").read_text().splitlines()]
    theirs = {key for _, _, keys in recorded for key in keys.split()}
    assert len(theirs) > 400 and sorted(theirs - known) == []
    unheard = STATED.keys() - theirs
    assert not unheard, "nobody of theirs has this key"


STRANGER = '''
from gym_adapters import LoRA
from gym_dialect import Choice, Key
from gym_llamafactory import Keys

class Mine(LoRA):
    """An adapter."""

class MineKeys(Keys):
    """Its keys."""
    choices = (Choice("finetuning_type", "adapter", {"mine": "mine"}), Choice("use_dora", "adapter", {"true": "mine"}))
    keys = (Key("mine_rank", "adapter.rank", "mine", default=3), Key("lora_target", "adapter.target_modules", "mine"))
'''


def component(section: str, name: str) -> type[Config]:
    return Train if section == "train" else load_component(SLOTS[section].kind, name)[1]


@pytest.mark.parametrize("row", table.installed(KIND).keys, ids=lambda row: f"{row.key}-{row.option}")
def test_every_row_leads_to_an_option(row: Key) -> None:
    names = row.of.split() or [row.section]
    for name in names:
        assert row.name in component(row.section, name).model_fields, f"{row.section} `{name}` has no `{row.name}`"


def test_every_choice_leads_to_a_component() -> None:
    for rows in table.installed(KIND).choosing().values():
        for _, row in rows:
            assert row.section in SECTION_OF.values()
            for name in {*row.names.values(), row.default} - {""}:
                component(row.section, name)
            keys = {other for names in row.yields.values() for other in names.split()}
            assert keys <= table.installed(KIND).choosing().keys(), "a key that it yields to chooses nothing"
            assert not set(row.refused) & set(row.names)


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[None]:
    """A package with an adapter, and a table of keys for it."""
    points = {"gym.adapters": {"mine": "gym_mine:Mine"}, "gym.llamafactory_keys": {"mine": "gym_mine:MineKeys"}}
    write_distribution(tmp_path, "gym-mine", points, {"gym_mine": STRANGER})
    table.installed.cache_clear()
    with installed_in(tmp_path):
        yield
    table.installed.cache_clear()


@pytest.mark.usefixtures("stranger")
def test_a_strangers_table_counts_as_ours_do() -> None:
    base = {"model_name_or_path": "tiny", "dataset": "identity", "stage": "sft"}
    found = load_recipe(base | {"finetuning_type": "mine", "lora_target": "q_proj"})
    assert found.adapter is not None and found.adapter.model_dump(include={"rank", "target_modules"}) == {
        "rank": 3,
        "target_modules": "q_proj",
    }
    assert load_recipe(base | {"finetuning_type": "mine", "mine_rank": 5}).adapter.rank == 5  # type: ignore[union-attr]
    with pytest.raises(RecipeError, match="belongs to adapter `mine` \\(gym-mine\\)"):
        load_recipe(base | {"mine_rank": 5})
    with pytest.raises(
        RecipeError, match="could mean `dora` \\(gym-llamafactory/adapters\\) and `mine` \\(gym-mine/mine\\)"
    ):
        load_recipe(base | {"use_dora": True})
