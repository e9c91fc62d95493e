"""`gym explain`: the canonical recipe, the components with their packages, and the code that would run."""

from __future__ import annotations

import json
import re

from click.testing import CliRunner

from gym_manage.explain import explain


def test_a_recipe_in_full(add, tmp_path):
    add("gym-toy")
    path = tmp_path / "r.yaml"
    path.write_text("model: {backend: toy-words, path: w}\nalgorithm: toy\n")
    told = CliRunner().invoke(explain, [str(path), "strength=2", "--json"], catch_exceptions=False)
    assert json.loads(told.stdout)["recipe"]["algorithm"] == {"name": "toy", "strength": 2}
    said = CliRunner().invoke(explain, [str(path), "--all"], catch_exceptions=False).stdout
    assert "strength: 1.0" in said and re.search(r"algorithm +toy +gym-toy 1\.0 +gym_toy:Toy", said)
