"""`gym plugins check`: every distribution is imported, each in a process of its own."""

from __future__ import annotations

import json

from gym_core.cli import run
from gym_core.discovery import installed
from gym_core.errors import PLUGIN
from gym_manage import check
from gym_testkit.metadata_files import forget_installed, installed_in, write_distribution


def test_each_distribution_is_reported(add, capsys, tmp_path):
    add("gym-toy")
    add("gym-toy-two")
    (tmp_path / "site/gym_toy_two.py").write_text("import os; os._exit(0)")
    assert run(["plugins", "check", "gym-toy", "Gym.Toy_two", "gym_optim", "--json"]) == PLUGIN  # as pip reads names
    told = {
        item["dist"]: [problem["why"] for problem in item["problems"]]
        for item in json.loads(capsys.readouterr().out)["distributions"]
    }
    assert told["gym-toy-two"][0] == "importing it ended the process with status 0"
    assert told["gym-toy"] and all("have one name" in why for why in told["gym-toy"])
    assert told.keys() == {"gym-toy", "gym-toy-two", "gym-optim"} and told["gym-optim"] == []


def test_commands_that_no_words_lead_to_are_named(tmp_path, capsys):
    """The kernel's own go before a plugin's, and a group has commands, but no groups of others."""
    code = "import click\n@click.command()\ndef one():\n    pass\n@click.command()\ndef two():\n    pass\n"
    names = {"toy-one": "one", "plugins.toy": "one", "train": "two", "plugins.list": "two", "toys.of.mine": "two"}
    points = {"gym.commands": {name: f"gym_toy_cli:{target}" for name, target in names.items()}}
    with installed_in(tmp_path):
        write_distribution(tmp_path, "gym-toy-cli", points, {"gym_toy_cli": code})
        forget_installed()
        assert run(["plugins", "check", "gym-toy-cli", "--json"]) == PLUGIN
    [said] = json.loads(capsys.readouterr().out)["distributions"]
    lost = [" ".join(name.split(".")) for name, target in names.items() if target == "two"]
    assert sorted(problem["why"].split("`")[1] for problem in said["problems"]) == sorted(
        f"gym {name}" for name in lost
    )


def test_all_are_reported_where_none_is_named(add, capsys, monkeypatch):
    add("gym-toy")
    asked = []
    monkeypatch.setattr(check, "inspect_all", lambda wanted, timeout: asked.append(wanted) or {})
    assert run(["plugins", "check"]) == 0
    assert all(asked[0](entry) for group in installed().entries.values() for entry in group)
    assert run(["plugins", "check", "gym-tuy"]) == PLUGIN
    assert "did you mean `gym-toy`" in capsys.readouterr().err
