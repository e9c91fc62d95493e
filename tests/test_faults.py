"""The list of faults that `nox -s faults` plants is of the code and the tests that are there now."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_each_fault_has_one_place_and_tests():
    spec = importlib.util.spec_from_file_location("faults", ROOT / "tests" / "faults.py")
    assert spec and spec.loader
    faults = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(faults)
    assert len(faults.FAULTS) >= 30
    for fault in faults.FAULTS:
        faults.place(ROOT, fault)
        tests = faults.folder(ROOT, fault.package) / "tests" / fault.tests
        assert tests.is_file() and fault.only.partition(" ")[0] in tests.read_text(encoding="utf-8"), fault
