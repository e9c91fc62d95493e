"""What `gym new-plugin` writes holds to every law of its kind, untouched, and so do the tests it writes."""

from __future__ import annotations

import pytest

from gym_testkit.scaffold import KINDS, write_plugin

LONG = {
    "backend",
    "callback",
    "family",
    "format",
    "planner",
    "scheduler",
    "template",
}  #: kinds that are like others, and are slow


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in LONG)) for kind in KINDS])
def test_generated_package_passes_untouched(kind, tmp_path, installed):
    package = write_plugin(kind, "fresh", tmp_path)
    run = installed(package)
    done = run("pytest", "--gym-dist", "gym-fresh", "tests", "-p", "no:cacheprovider", "-q", "-rps")
    assert done.returncode == 0, done.stdout
    assert f"PASSED gym-fresh::{kind} law:" in done.stdout
    assert "PASSED gym-fresh::readme law: its recipes run" in done.stdout, done.stdout
    assert "PASSED tests/test_" in done.stdout
