"""`gym plugins trace`: what would be called at each hook, in the order of the calls, and whose it is."""

from __future__ import annotations

import json
from pathlib import Path

from gym_core.cli import run
from gym_core.errors import OK, PLUGIN, USAGE


def test_hooks_are_traced_in_the_order_of_their_calls(add, capsys):
    add("gym-toy")
    Path("r.yaml").write_text("algorithm: toy\noptimizer: adamw\nhooks: [toy-watch]\n")
    assert run(["plugins", "trace", "r.yaml", "--json"]) == OK
    traced = json.loads(capsys.readouterr().out)["hooks"]
    assert list(traced) == ["load_model", "build_trainer", "quantize", "export"]
    assert [(call["how"], call["dist"], call["code"]) for call in traced["load_model"]] == [
        ("wrapper", "gym-toy", "gym_toy:Watch.load_model"),
        ("call", "gym-core", "gym_core.hooks:HookSpecs.load_model"),
    ]
    assert [call["dist"] for call in traced["export"]] == ["gym-toy", "gym-core"]
    assert [call["dist"] for call in traced["quantize"]] == ["gym-core"]
    assert run(["plugins", "trace", "r.yaml"]) == OK
    assert "  wrapper   gym-toy 1.0  gym_toy:Watch.load_model" in capsys.readouterr().out


def test_a_command_without_its_group_is_answered_with_both(capsys):
    assert run(["trace", "r.yaml"]) == USAGE
    assert "did you mean `gym plugins trace`?" in capsys.readouterr().err


def test_a_hook_that_is_not_there_is_said(add, capsys):
    add("gym-toy")
    Path("r.yaml").write_text("algorithm: toy\nhooks: [toy-wach]\n")
    assert run(["plugins", "trace", "r.yaml"]) == PLUGIN
    assert "did you mean `toy-watch`?" in capsys.readouterr().err
