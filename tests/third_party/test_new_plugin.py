"""What `gym new-plugin` writes holds to every law of its kind, untouched, and so do the tests it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_core import discovery
from gym_core.kinds import KINDS as KERNEL
from gym_testkit.scaffold import KINDS, WITHOUT, group_of, write_plugin

LONG = {
    "backend",
    "callback",
    "dialect",
    "exporter",
    "family",
    "format",
    "planner",
    "scheduler",
    "strategy",
    "template",
}  #: kinds that are like others, and are slow
#: Laws that ask the engine more than the package; the algorithm of docs/writing-a-plugin.md is held to them in every run.
ASKED = {"algorithm": ["-k", "not (kill or processes)"]}


def test_every_group_has_a_package_to_begin_with_or_a_reason():
    scaffolded = {group_of(kind) for kind in KINDS}
    assert {*KERNEL, *discovery.installed().entries} - scaffolded == WITHOUT.keys()
    text = (Path(__file__).parents[2] / "docs/writing-a-plugin.md").read_text()
    assert all(f"`gym.{group}`" in text for group in scaffolded | WITHOUT.keys())


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in LONG)) for kind in KINDS])
def test_generated_package_passes_untouched(kind, tmp_path, installed):
    package = write_plugin(kind, "fresh", tmp_path)
    run = installed(package)
    asked = ["tests", *ASKED.get(kind, ())]
    done = run("pytest", "--gym-dist", "gym-fresh", *asked, "-p", "no:cacheprovider", "-q", "-rps")
    assert done.returncode == 0, done.stdout
    assert f"PASSED gym-fresh::{kind} law:" in done.stdout
    assert "PASSED gym-fresh::readme law: its recipes run" in done.stdout, done.stdout
    assert "PASSED tests/test_" in done.stdout
