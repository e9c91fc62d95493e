"""Rows of a shape that another package brings."""

from __future__ import annotations

import pytest
from noise_shape import Shouted

from gym_core import DataError, PluginError
from gym_data import DatasetConfig, File
from gym_data.formats import Messages
from gym_data.preview import tokenised
from gym_data.tokenizer import Tokenizer

ROWS = [{"shout": "two"}, {"shout": "plus two"}, {"shout": "two"}]


def build(model, path, shape="noise_shape:SHAPE", **options):
    return DatasetConfig(sources=[File(path=path)], **options).build(tokenizer=model, rows=shape, seed=0)


def test_samples_are_what_the_package_makes_of_rows(model, write):
    prepared = build(model, write(ROWS))
    assert [Tokenizer(model).decode(each.tokens) for each in prepared.train] == ["TWO", "PLUS TWO", "TWO"]
    assert all(type(each) is Shouted for each in prepared.train)
    assert prepared.report["duplicates"] == 1
    assert build(model, write(ROWS)).report["cached"]


def test_rows_are_held_out_and_shown_as_others_are(model, write):
    prepared = build(model, write(ROWS[:2]), validation=1)
    assert (len(prepared.train), len(prepared.validation)) == (1, 1)
    shown = tokenised(DatasetConfig(sources=[File(path=write(ROWS))]), model, "noise_shape:SHAPE", 0, 1)
    assert "".join(run["text"] for run in shown["examples"][0]["runs"]) == "TWO"


def test_columns_that_it_does_not_know_are_refused_with_its_advice(model, write):
    with pytest.raises(DataError, match=r"no known row format(.|\n)*name: text, text: noise"):
        build(model, write([{"silence": "two"}]))


def test_rows_that_mean_something_else_are_refused(model, write):
    messages = [{"role": "user", "content": "two"}, {"role": "assistant", "content": "two"}]
    with pytest.raises(DataError, match="shape `conversation`, and this algorithm learns from `shape`"):
        build(model, write([{"messages": messages}]), format=Messages())


@pytest.mark.parametrize(("name", "error"), [("noise_shape:NOTHING", PluginError), ("noise", DataError)])
def test_what_is_no_shape_is_refused(model, write, name, error):
    with pytest.raises(error, match="noise"):
        build(model, write(ROWS), name)
