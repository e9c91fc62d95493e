"""Every package of the tree holds to the laws of packages, commands and READMEs; `nox -s conformance` asks all of them."""

from __future__ import annotations

from pathlib import Path

from gym_testkit import warm

ROOT = Path(__file__).parents[1]


def test_packages_commands_and_readmes():
    """One process for all; what trains is left to the packages' own tests."""
    texts = {path.parent.name: path.read_text() for path in sorted((ROOT / "plugins").glob("*/pyproject.toml"))}
    names = [f"--gym-dist={name}" for name, text in texts.items() if '[project.entry-points."gym.' in text]
    asked = ["-k", "(package or command or readme) and not run", "-p", "no:cacheprovider", "-rf"]
    done = warm.run("-m", "pytest", *names, *asked, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(".") > 10 * len(names), "hardly anything was asked"
