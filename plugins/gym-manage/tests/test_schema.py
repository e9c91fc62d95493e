"""`gym schema`: a schema of what is installed, which accepts good recipes and no others."""

from __future__ import annotations

import json

import jsonschema
import pytest
from click.testing import CliRunner

from gym_manage.schema import command

GOOD = [
    {"model": "w", "algorithm": "toy"},
    {
        "model": {"backend": "toy-words", "path": "w"},
        "algorithm": {"name": "gym-toy/toy", "strength": 2},
        "data": {"name": "toy-rows", "sources": [{"name": "toy-lines", "path": "a"}]},
    },
    {"algorithm": "toy", "export": ["toy-shout", {"name": "toy-shout", "mark": "?"}], "train": {"epochs": 2}},
    {"say": "w", "loudly": 3, "train": {"epochs": 2}},
]
BAD = [
    {"algorithm": "other-than-all"},
    {"algorithm": {"name": "toy", "strenth": 2}},
    {"train": {"epoch": 1}},
    {"adaptor": 1},
    {"say": "w", "train": {"epoch": 1}},
]


@pytest.mark.usefixtures("add")
def test_it_accepts_good_recipes_and_no_others(add):
    add("gym-toy")
    done = CliRunner().invoke(command, ["--indent", "0"], catch_exceptions=False)
    assert done.exit_code == 0 and not done.stderr
    schema = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert [list(validator.iter_errors(recipe)) for recipe in GOOD] == [[]] * 4
    assert all(list(validator.iter_errors(recipe)) for recipe in BAD)
