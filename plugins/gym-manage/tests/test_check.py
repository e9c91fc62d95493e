"""`gym plugins check`: every distribution is imported, each in a process of its own."""

from __future__ import annotations

import json

from gym_core.cli import run
from gym_core.errors import PLUGIN


def test_each_distribution_is_reported(add, capsys, tmp_path):
    add("gym-toy")
    add("gym-toy-two")
    (tmp_path / "site/gym_toy_two.py").write_text("import os; os._exit(0)")
    assert run(["plugins", "check", "--json"]) == PLUGIN
    told = {
        item["dist"]: [problem["why"] for problem in item["problems"]]
        for item in json.loads(capsys.readouterr().out)["distributions"]
    }
    assert told["gym-toy-two"][0] == "importing it ended the process with status 0"
    assert told["gym-toy"] and all("have one name" in why for why in told["gym-toy"])
    assert told["gym-optim"] == [] if "gym-optim" in told else True
