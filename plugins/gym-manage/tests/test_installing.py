"""`gym plugins install` and `uninstall`: the real pip, a package made on the spot, and what it brought."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gym_core.cli import run
from gym_core.errors import FAILED, OK, PLUGIN

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "gym-fresh"
version = "1.0"
[project.entry-points."gym.algorithms"]
fresh = "gym_fresh:Fresh"
[tool.hatch.build.targets.wheel]
packages = ["gym_fresh"]
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "fresh$(touch x)"  # a shell would run it
    (folder / "gym_fresh").mkdir(parents=True)
    (folder / "gym_fresh/__init__.py").write_text("raise SystemExit('nobody asked for this')\n")
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder


def test_what_pip_installs_is_told_by_component(add, package, tmp_path):
    site = tmp_path / "site"
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
    done = subprocess.run(
        [sys.executable, "-m", "gym_core.cli", "plugins", "install", *options, str(package)],
        env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == OK, done.stderr
    assert "+ algorithms/fresh  gym-fresh 1.0\n" in done.stdout
    assert not (tmp_path / "x").exists()


def test_a_failure_of_pip_is_ours(tmp_path):
    assert run(["plugins", "install", "--quiet", "--no-index", "./not-there-at-all"]) == FAILED


@pytest.mark.parametrize("name", ["numpy", "gym-core", "gym-nobody"])
def test_only_plugins_are_uninstalled(name, capsys):
    assert run(["plugins", "uninstall", name]) == PLUGIN
    assert name in capsys.readouterr().err


def test_setuptools_works_after_it(tmp_path):
    """`import pip`, or a question for it, ends what setuptools puts in the place of distutils: for whoever compiles later."""
    script = f"from gym_core.cli import run; run(['plugins', 'install', {str(tmp_path / 'none')!r}]); import setuptools"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False).returncode == OK
