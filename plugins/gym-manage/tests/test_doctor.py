"""`gym doctor`: every unmet promise of a distribution is named, and no plugin is imported for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gym_manage.doctor import checks


def by_name() -> dict[str, object]:
    return {check.name: check for check in checks()}


def test_this_machine(install):
    found = by_name()
    assert {
        "python",
        "torch",
        "transformers",
        "processors",
        "cache",
        "disk here",
        "import gym",
    } <= found.keys()
    assert all(check.ok for check in found.values()), found


def test_requirements_of_plugins(install):
    needs = (
        "pydantic>=2",
        "nothing-of-the-kind>=3",
        "click<1",
        "rich; python_version < '3'",
        "torch==0.1; extra == 'gpu'",
    )
    install("gym-boom", "[gym.algorithms]\nboom = boom:Boom\n", *needs)
    check = by_name()["gym-boom"]
    assert not check.ok
    assert "nothing-of-the-kind>=3 (not installed)" in check.detail
    assert "click<1 (" in check.detail
    assert "pydantic" not in check.detail + check.fix
    assert check.fix == "pip install 'nothing-of-the-kind>=3' 'click<1'"
    assert "boom" not in sys.modules


def test_a_requirement_that_cannot_be_read(install):
    install("gym-odd", "[gym.hooks]\nodd = odd:Odd\n", "this is (no) requirement")
    assert not by_name()["gym-odd"].ok


def test_names_that_two_bring(install):
    install("gym-a", "[gym.optimizers]\nmuon = a:Muon\n")
    install("gym-b", "[gym.optimizers]\nmuon = b:Muon\n")
    check = by_name()["optimizers/muon"]
    assert not check.ok
    assert "gym-a 1.0 and gym-b 1.0" in check.detail
    assert "gym-a/muon" in check.fix


def test_a_cache_that_cannot_be_written(install, monkeypatch, tmp_path: Path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "file" / "cache"))
    assert not by_name()["cache"].ok
    assert "GYM_CACHE" in by_name()["cache"].fix


@pytest.mark.usefixtures("install")
def test_another_package_called_gym(monkeypatch, tmp_path: Path):
    (tmp_path / "gym").mkdir()
    (tmp_path / "gym" / "__init__.py").write_text("make = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "gym", raising=False)
    assert "is another package" in by_name()["import gym"].detail
