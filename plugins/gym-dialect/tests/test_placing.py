"""Keys are placed as rows say, and what has no place is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_core.sections import Findings
from gym_dialect import Dialect, Stated, place, take_apart
from gym_dialect.markdown import markdown
from gym_testkit.metadata_files import installed_in, write_distribution

FOO = '''
from typing import ClassVar
from gym_dialect import Choice, Key, Keys

class FooKeys(Keys):
    """The kind of its tables."""
    kind: ClassVar[str] = "foo_keys"

def doubled(value, also=0):
    if value < 0:
        raise ValueError("is below 0")
    return 2 * value + also

class OwnKeys(FooKeys):
    """Its tables."""
    choices = (
        Choice("scheme", "scheduler", {"flat": "constant", "wave": "cosine"}, default="cosine", refused={"rex": "scheme: wave"}),
    )
    keys = (
        Key("waves", "scheduler.num_cycles", "cosine", default=3),
        Key("size", "train.batch_size", convert=doubled, together="also"),
        Key("switch", "train.shuffle", convert={True: False, False: True}),
        Key("inner.rate", "train.learning_rate", convert=float),
    )
'''
STATED = {"workers": Stated(why="changes nothing"), "odd": Stated((False, None), "is not done", "leave it out")}
DIALECT = Dialect("foo_keys", STATED, {"out": "output"}, {"rest": "scheduler"}, frozenset({"inner"}))


@pytest.fixture
def foo(tmp_path: Path) -> Iterator[None]:
    """A package with a dialect."""
    points = {"gym.kinds": {"foo_keys": "foo:FooKeys"}, "gym.foo_keys": {"own": "foo:OwnKeys"}}
    write_distribution(tmp_path, "gym-foo", points, {"foo": FOO})
    with installed_in(tmp_path):
        yield


def placed(keys: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the sections that keys mean, and what is wrong with them."""
    found, sections, flat = Findings(), {}, dict(keys)
    take_apart(["inner"], flat, found)
    place(DIALECT, sections, flat, found)
    return sections, [(problem.key, problem.why) for problem in found.problems]


@pytest.mark.usefixtures("foo")
def test_rows_are_placed_and_the_rest_is_refused_by_name() -> None:
    assert placed({}) == ({"scheduler": {"name": "cosine", "num_cycles": 3}}, [])
    sections, problems = placed({"scheme": "flat", "size": 2, "also": 1, "switch": True, "out": "runs/x", "workers": 9})
    assert not problems
    assert sections == {
        "scheduler": {"name": "constant"},
        "train": {"batch_size": 5, "shuffle": False},
        "output": "runs/x",
    }
    assert placed({"inner": {"rate": "1e-4"}})[0]["train"] == {"learning_rate": 1e-4}
    assert placed({"also": 1})[1] == [("also", "says nothing without `size`")]
    assert placed({"size": -1})[1] == [("size", "is below 0")]
    assert placed({"odd": True})[1] == [("odd", "is not done")]
    assert placed({"scheme": "rex"})[1] == [("scheme", "there is no `rex` here; set scheme: wave")]
    assert placed({"switch": "no"})[1] == [("switch", "is true or false, not `no`")]
    assert placed({"scheme": "flat", "waves": 2})[1] == [("waves", "belongs to scheduler `cosine` (gym-optim)")]
    assert placed({"scheme": "flat", "waves": 0})[1] == []  # asks for nothing
    assert placed({"nonsense": 1})[1] == [("nonsense", "unknown key")]
    assert placed({"epochs": 2}) == ({"scheduler": {"name": "cosine", "num_cycles": 3}, "train": {"epochs": 2}}, [])


@pytest.mark.usefixtures("foo")
def test_the_page_has_every_row() -> None:
    table = DIALECT.table
    choices = [row for rows in table.choices.values() for row in rows]
    text = "\n".join(markdown(choices, table.keys, STATED, ["more"]))
    for key in DIALECT.known() - {"out", "inner", "rest"}:
        assert f"`{key}`" in text
    assert "more" in text and "refused: set scheme: wave" in text
