"""What a plugin declares to need is held against what is installed before anything of it is imported."""

from __future__ import annotations

import sys

import pytest

from gym_core import PluginError
from gym_core.loading import load_component
from gym_core.requirements import unmet

ONE = "from gym_core import Algorithm\nclass One(Algorithm):\n    '''One.'''\n"
POINTS = {"gym.algorithms": {"one": "one:One"}}


@pytest.mark.parametrize(
    ("requires", "said"),
    [
        (("pydantic>=99",), "it needs pydantic>=99 (2."),
        (("nothing-of-the-kind",), "it needs nothing-of-the-kind (not installed)"),
        (("click<1", "pydantic>=99"), "it needs click<1 (8"),
        (("gym-other<0.1",), "it needs gym-other<0.1 (1.0 is installed)"),
        (("gym-other",), "gym-other, which it rests on, needs pydantic>=77"),
        (("this is (no) requirement",), "cannot be read"),
        (("click>=8", "pydantic>=99; python_version < '3'", "torch>=99; extra == 'gpu'"), ""),
        (("gym-third",), ""),
        (("gym-third[more]",), "gym-third, which it rests on, needs click>=77"),
    ],
)
def test_what_does_not_hold_stops_the_import(install, requires, said):
    install("gym-other", {"other": ""}, {"gym.hooks": {"other": "other:x"}}, requires=("pydantic>=77",))
    more = ("click>=77; extra == 'more'", "gym-one")  # back again, which must end
    install("gym-third", {"third": ""}, {"gym.hooks": {"third": "third:x"}}, requires=more)
    install("gym-one", {"one": ONE}, POINTS, requires=requires)
    if not said:
        assert load_component("algorithms", "one")[1].__name__ == "One"
        return
    with pytest.raises(PluginError) as caught:
        load_component("algorithms", "one")
    text = str(caught.value)
    assert said in text and "gym-one 1.0" in text and "pip install" in text and len(text.splitlines()) <= 4
    assert "one" not in sys.modules


def test_all_that_does_not_hold_is_told_once(install):
    install("gym-one", {"one": ONE}, POINTS, requires=("click<1", "pydantic>=99", "click<1"))
    assert [(item.needs, item.owner) for item in unmet("gym-one")] == [
        ("click<1", "gym-one"),
        ("pydantic>=99", "gym-one"),
    ]
