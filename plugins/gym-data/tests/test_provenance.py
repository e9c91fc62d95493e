"""What cached tokens are named by: everything that made them. And errors name the component and the package."""

import datetime
from types import SimpleNamespace
from typing import ClassVar

import pytest
from data_cases import UNMARKED, chat
from strangers import installed

from gym_core import DataError, GymError, PluginError
from gym_core.sections import SLOTS, Findings, component
from gym_data import DatasetConfig, File, provenance
from gym_data.formats import Alpaca
from gym_data.kinds import Media
from gym_data.tokenizer import Tokenizer


def dataset(**options) -> DatasetConfig:
    """The data section of a recipe that names the stranger's template."""
    found = Findings()
    made = component(SLOTS["data"], {"template": "plain"} | options, ("data",), found)
    assert not found.problems, found.problems
    return made


def prepared(model, site, source=None, options=None, **stranger):
    """What the stranger's package makes, installed in some state."""
    with installed(site, **stranger):
        made = dataset(**({"sources": [{"name": "table", "read_as": "poem"} | (source or {})]} | (options or {})))
        return made.build(tokenizer=model, seed=0)


CHANGES = {
    "the version": {"version": "1.1"},
    "the code": {"changed": {"a {i}": "another {i}"}},
    "a table beside the code": {"table": '{"a": 1}'},
    "the code of a format": {"changed": {"row[self.config.verse]}": "row[self.config.verse] + '!'}"}},
    "the distribution": {"dist": "gym-fork"},
    "the package": {"package": "gym_other"},
    "a library that it requires": {"library": "4.0"},
    "an option of the source": {"source": {"rows": 4}},
    "an option of the format": {"source": {"read_as": {"name": "poem", "verse": "ask"}}},
    "rows drawn": {"source": {"samples": 2}},
    "an option for the template": {"options": {"template_options": {"brief": True}}},
    "the template": {"changed": {"m.role }}:": "m.role }} says"}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_tokens_are_made_again_when_anything_that_made_them_changes(change, model, tmp_path):
    first = prepared(model, tmp_path / "a")
    again = prepared(model, tmp_path / "b")
    other = prepared(model, tmp_path / "c", **CHANGES[change])
    assert (first.report["cached"], again.report["cached"], other.report["cached"]) == (False, True, False), change
    assert first.key == again.key != other.key
    assert first.fingerprint == again.fingerprint


def test_the_package_and_what_it_rests_on_are_named_too(model, write, monkeypatch):
    config = DatasetConfig(sources=[File(path=write([{"instruction": "a", "output": "b"}]))])
    keys = {config.build(tokenizer=model).key}
    for name, told in {"_code": "changed", "_version": "9", "_owners": {("gym-data", "9")}}.items():
        with monkeypatch.context() as patch:
            patch.setattr(provenance, name, lambda package, told=told: told)
            provenance.read_maker.cache_clear()
            keys.add(config.build(tokenizer=model).key)
    provenance.read_maker.cache_clear()
    assert len(keys) == 4


def test_equal_examples_have_one_fingerprint_whoever_made_them(model, tmp_path):
    """So a run goes on after an update that changes none of its samples."""
    one, two = prepared(model, tmp_path / "a"), prepared(model, tmp_path / "b", version="2.0")
    assert one.key != two.key and one.fingerprint == two.fingerprint
    assert one.fingerprint != prepared(model, tmp_path / "c", source={"rows": 2}).fingerprint


class Here(File):
    """A source whose code is nowhere on disk."""

    target: ClassVar[str] = "gym_data.sources.files:FileRows"


def test_code_that_cannot_be_read_is_never_found_again(model, write, monkeypatch):
    monkeypatch.setattr(Here, "__module__", "a_notebook")
    config = DatasetConfig(sources=[Here(path=write([{"instruction": "a", "output": "b"}]))])
    assert [config.build(tokenizer=model).report["cached"] for _ in range(2)] == [False, False]


class Blind(Media):
    """A reader of media that no row has."""

    def build(self, **_):
        return SimpleNamespace(fingerprint="one", tokens=frozenset(), texts=frozenset(), marks={"image": "<seen>"})


def test_whose_code_reads_media_is_named_too(model, write, monkeypatch):
    config = DatasetConfig(sources=[File(path=write([{"messages": chat("a", "b")}]))], media=Blind())
    assert [config.build(tokenizer=model).report["cached"] for _ in range(2)] == [False, True]
    monkeypatch.setattr(Blind, "__module__", "a_notebook")
    assert not config.build(tokenizer=model).report["cached"]


def test_the_day_counts_where_a_template_asks_for_it(with_template, model, write):
    path = write([{"messages": chat("hello", "you")}])
    dated = with_template("{{ strftime_now('%d %b %Y %H:%M') }}" + UNMARKED)
    days = [datetime.date(2024, 7, 26), datetime.date(2024, 7, 27)]
    config = DatasetConfig(sources=[File(path=path)])
    first, second = (config.build(tokenizer=dated, day=day) for day in days)
    assert "26 Jul 2024 00:00" in Tokenizer(dated).decode(first.train[0].tokens)
    assert first.fingerprint != second.fingerprint and not second.report["cached"]
    said = DatasetConfig(sources=[File(path=path)], date="2024-07-26")
    assert said.build(tokenizer=dated, day=days[1]).report["cached"]
    assert config.build(tokenizer=model, day=days[0]).key == config.build(tokenizer=model, day=days[1]).key


def test_a_strangers_source_gets_what_ours_get(model, tmp_path):
    made = prepared(model, tmp_path / "a", source={"samples": 5})
    assert len(made.train) == 5 and {example.id for example in made.train} == {"table:1", "table:2", "table:3"}
    with pytest.raises(DataError) as caught:
        prepared(model, tmp_path / "b", source={"read_as": {"name": "poem", "verse": "nowhere"}})
    assert str(caught.value).splitlines()[0] == "table (format `poem` of gym-acme 1.0)"


LOOP = "{% for m in messages %}"
FAULTS = {
    "a row that it cannot take": ("row[self.config.verse]}", "row['gone']}", "format `poem`", "KeyError"),
    "rows that break off": ("return ({", "return (1 / 0 and {", "source `table`", "ZeroDivisionError"),
    "rows that are no mappings": ("return ({", "return ([i] or {", "source `table`", "list"),
    "a fingerprint that is none": ('"always the same"', "3", "source `table`", "int"),
    "something else than a row": ("Conversation(said)", "said", "format `poem`", "tuple"),
    "no source": ("    def rows(", "        open('/no')\n    def rows(", "source `table`", "No such file"),
    "no template": (
        "template(config):",
        "template(config):\n    raise OverflowError('much')",
        "template `plain`",
        "much",
    ),
    "a template that refuses": (LOOP, "{{ raise_exception('no thanks') }}" + LOOP, "template `plain`", "no thanks"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_in_a_strangers_component_names_it(fault, model, tmp_path):
    old, new, who, what = FAULTS[fault]
    with pytest.raises(GymError) as caught:
        prepared(model, tmp_path, changed={old: new})
    text = str(caught.value)
    assert f"{who} of gym-acme 1.0" in text and what in text, text
    assert text.count("\n") <= 3
    assert isinstance(caught.value, DataError | PluginError)


def test_our_own_are_named_in_the_same_way(model, write):
    with pytest.raises(DataError, match=r"rows.jsonl \(format `alpaca` of gym-data ") as caught:
        DatasetConfig(sources=[File(path=write([{"instruction": "a", "output": ""}]), read_as=Alpaca())]).build(
            tokenizer=model
        )
    assert "row 1" in str(caught.value)
