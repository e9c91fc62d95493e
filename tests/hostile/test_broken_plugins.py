"""Plugins that cannot be imported: the command line lives, other runs are unharmed, each fault is told as it is."""

from __future__ import annotations

import json
import time

import pytest

NAMES = (
    "raises", "exits", "panics", "syntax", "recurses", "lacks",
    "absent", "attribute", "function", "wrongkind", "future", "hangs",
)  # fmt: skip
PLUGIN = 3
QUICKLY = {"GYM_IMPORT_SECONDS": "2"}


def test_every_fault_is_asked_about(broken):
    assert set(NAMES) == set(broken)


def test_help_and_list_import_nothing(site, broken):
    begun = time.monotonic()
    shown, listed = site.gym("--help"), site.gym("--plugins", "list")
    assert time.monotonic() - begun < 20, "something was imported"
    assert shown.returncode == listed.returncode == 0, shown.stderr + listed.stderr
    assert "train" in shown.stdout
    assert not listed.stderr
    for name in ("toy", *NAMES):
        assert f"gym-{name} 1.0" in listed.stdout


def test_unrelated_run_is_unharmed(site, broken):
    recipe = site.recipe("toy")
    for command in ("validate", "explain", "train"):
        done = site.gym(command, recipe)
        assert done.returncode == 0, done.stderr
    assert (site.root.parent / "runs/toy/model/weights.txt").exists()


def test_check_reports_each_fault_as_what_it_is(site, broken):
    done = site.gym("plugins", "check", "--timeout", "6", "--json")
    assert done.returncode == PLUGIN, done.stderr
    found = {result["dist"]: result["problems"] for result in json.loads(done.stdout)["distributions"]}
    assert found["gym-toy"] == []
    for name, said in broken.items():
        assert found[f"gym-{name}"], f"gym-{name} is taken for healthy"
        text = json.dumps(found[f"gym-{name}"])
        assert said in text and f"gym-{name}" in text, text


@pytest.mark.parametrize("name", NAMES)
def test_recipe_that_names_it_stops_before_anything_else(site, broken, name):
    done = site.gym("train", site.recipe(name), **QUICKLY)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == PLUGIN, done.stderr
    assert len(lines) <= 4, done.stderr
    assert f"gym-{name}" in done.stderr and broken[name] in done.stderr, done.stderr
    assert not (site.root.parent / "runs").exists(), "something was written"


def test_schema_leaves_the_broken_ones_out(site, broken):
    done = site.gym("schema", **QUICKLY)
    assert done.returncode == 0, done.stderr
    assert '"toy"' in json.dumps(json.loads(done.stdout))
    assert "gym-raises" in done.stderr


def test_process_that_dies_at_import_is_reported_by_check(site):
    site.add("gym-dies", "import os\nos._exit(7)")
    done = site.gym("plugins", "check")
    assert done.returncode == PLUGIN
    assert "gym-dies" in done.stdout and "status 7" in done.stdout


def test_plugin_that_prints_at_import_does_not_garble_check(site):
    site.add("gym-chatty", "print('{\"dist\": 1}')\n" + _toy(site))
    done = site.gym("plugins", "check", "--json")
    assert done.returncode == 0, done.stdout
    assert all(not result["problems"] for result in json.loads(done.stdout)["distributions"])


def _toy(site):
    return (site.root / "gym_toy.py").read_text().replace("gym_toy", "gym_chatty")
