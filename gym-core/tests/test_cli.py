"""The command line: instant and import-free where it lists, exact in its exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = "model: {backend: words, path: w}\n"
PAPER = "https://arxiv.org/abs/1706.03762"
HEAVY = {"torch", "numpy", "pydantic", "transformers", "pluggy", "stevedore"}


def gym(site: Path, *arguments: str, code: str | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "gym_core.cli"]
    environment = {**os.environ, "PYTHONPATH": str(site), "NO_COLOR": "1"}
    return subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, timeout=60)


@pytest.fixture
def recipe(tmp_path):
    def write(text: str = MODEL + "algorithm: toy\n", name: str = "r.yaml") -> str:
        (tmp_path / name).write_text(text + f"output: {tmp_path / 'out'}\n")
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize("arguments", [["--help"], ["--plugins", "list"], ["plugins", "list", "--json"], ["--version"]])
def test_listing_imports_nothing_heavy(site, arguments):
    code = (
        "import sys; from gym_core.cli import run\n"
        "status = run(sys.argv[1:])\n"
        f"loaded = {sorted(HEAVY)!r}\n"
        "print('LOADED', [name for name in loaded if name in sys.modules], 'toy' in sys.modules, file=sys.stderr)\n"
        "sys.exit(status)"
    )
    done = gym(site, *arguments, code=code)
    assert done.returncode == 0, done.stderr
    assert "LOADED [] False" in done.stderr


def test_plugins_list_names_owner_and_version(site):
    listed = json.loads(gym(site, "plugins", "list", "--json").stdout)["plugins"]
    assert {
        "kind": "algorithms",
        "name": "toy",
        "value": "toy:Toy",
        "dist": "gym-toy",
        "version": "1.0",
        "paper": PAPER,
    } in listed
    text = gym(site, "--plugins", "list").stdout
    assert text == gym(site, "plugins", "list").stdout and re.search(rf"gym-toy 1\.0 +{PAPER}\n", text)
    assert "exporters" not in gym(site, "--plugins", "list", "--kind", "algorithms").stdout


def test_plugins_show(site):
    shown = json.loads(gym(site, "plugins", "show", "algorithms/toy", "--json").stdout)["components"]
    assert shown[0]["doc"] == "Learns nothing, quickly."
    assert shown[0]["options"][0] == {
        "name": "strength", "type": "float", "default": "1.0", "doc": "How strongly.", "flat": ["toy_strength"]
    }  # fmt: skip
    assert "How strongly." in gym(site, "plugins", "show", "toy").stdout


def test_train_validate_explain_export(site, recipe, tmp_path):
    path = recipe()
    assert gym(site, "validate", path).returncode == 0
    explained = json.loads(gym(site, "explain", path, "strength=2", "--json").stdout)
    assert explained["recipe"]["algorithm"] == {"name": "toy", "strength": 2}
    assert "toy_impl:Trainer" in gym(site, "explain", path).stdout
    done = gym(site, "train", path, "--json")
    assert json.loads(done.stdout)["artifact"]["path"] == str(tmp_path / "out" / "model")
    assert "finished already" in gym(site, "train", path).stdout
    exported = gym(site, "export", str(tmp_path / "out"), "--to", "shout", "mark=?")
    assert exported.returncode == 0, exported.stderr
    assert (tmp_path / "out" / "export" / "shout" / "words.txt").read_text() == "W 1.0?"


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (["validate"], MODEL + "algorithm: toy\nadaptor: x\n", 2),
        (["validate"], MODEL + "algorithm: nothing\n", 3),
        (["train"], MODEL + "algorithm: toy\ntrain: {epochs: 0}\n", 2),
        (["explain"], "model: [w\n", 2),
        (["validate"], MODEL + "model: v\nalgorithm: toy\n", 2),
        (["validate"], "model: !!python/object/apply:os.system [id]\nalgorithm: toy\n", 2),
    ],
)
def test_exit_codes_and_four_lines(site, recipe, arguments, text, code):
    done = gym(site, *arguments, recipe(text))
    assert done.returncode == code
    assert 1 <= len(done.stderr.strip().splitlines()) <= 4 and "Traceback" not in done.stderr
    as_json = gym(site, *arguments, recipe(text), "--json")
    assert as_json.returncode == code and json.loads(as_json.stdout)["problems"]


def test_usage_errors(site, tmp_path):
    assert gym(site, "validate", str(tmp_path / "absent.yaml")).returncode == 2
    assert gym(site, "nonsense").returncode == 2
    assert gym(site, "train").returncode == 2
    assert gym(site, "export", str(tmp_path)).returncode == 5


def test_a_crash_is_told_in_four_lines_and_recorded(site, recipe, tmp_path):
    (site / "crash.py").write_text("class Trainer:\n    def __init__(self, *a, **k): raise KeyError('lost')\n")
    code = (
        "import toy, sys; toy.Toy.target = 'crash:Trainer'; from gym_core.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    done = gym(site, "train", recipe(), code=code)
    assert done.returncode == 1 and "KeyError: 'lost'" in done.stderr and len(done.stderr.strip().splitlines()) <= 4
    assert "Traceback" in json.loads((tmp_path / "out" / "run.json").read_text())["error"]["traceback"]


def test_schema_accepts_good_recipes_and_no_others(site):
    import jsonschema

    schema = json.loads(gym(site, "schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    good = [
        {"model": "w", "algorithm": "toy"},
        {
            "model": {"backend": "words", "path": "w"},
            "algorithm": {"name": "toy", "strength": 2},
            "data": {"name": "rows", "sources": [{"name": "lines", "path": "a"}]},
        },
        {"model": "w", "algorithm": "toy", "export": ["shout", {"name": "shout", "mark": "?"}], "train": {"epochs": 2}},
        {"model_name_or_path": "w", "toy_strength": 3},
    ]
    bad = [
        {"algorithm": "other"},
        {"algorithm": {"name": "toy", "strenth": 2}},
        {"train": {"epoch": 1}},
        {"adaptor": 1},
    ]
    assert [list(validator.iter_errors(recipe)) for recipe in good] == [[]] * 4
    assert all(list(validator.iter_errors(recipe)) for recipe in bad)


def test_check_reports_each_distribution(site):
    done = gym(site, "plugins", "check", "--json")
    by_name = {item["dist"]: item for item in json.loads(done.stdout)["distributions"]}
    assert by_name["gym-toy"]["problems"] == []
