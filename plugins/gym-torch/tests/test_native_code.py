"""C files are compiled once for a machine, and whatever a compiler or a cache does, no run ends by it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_torch.kernels import fused_ops, native_code


@pytest.fixture(autouse=True)
def _asked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "cache"))
    kept = native_code.library, native_code.features
    for each in kept:
        each.cache_clear()
    yield
    monkeypatch.undo()
    for each in kept:
        each.cache_clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "answer.c"
    file.write_text("int answer(void) { return 42; }\n")
    return file


def test_a_compiler_that_does_not_run_is_none(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "cc"
    broken.write_bytes(b"\x7fELF of another machine")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    assert native_code.library(source) is None
    assert native_code.features() == b""


@pytest.mark.parametrize("kept", [0, 2000, -100])
def test_a_library_that_is_damaged_is_compiled_again(source: Path, tmp_path: Path, kept: int) -> None:
    """A process maps what it loads: where the end of the file is missing it is killed, so others than this one load it."""
    imports = "from pathlib import Path; from gym_torch.kernels.native_code import library"
    asked = f"{imports}; print(library(Path({str(source)!r})).answer())"

    def answer() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)

    first = answer()
    if "NoneType" in first.stderr:
        pytest.skip("no compiler")
    assert first.stdout == "42\n"
    (file,) = (tmp_path / "cache" / "kernels").glob("*.so")
    whole = file.read_bytes()
    file.write_bytes(whole[:kept])
    assert answer().stdout == "42\n"
    assert file.read_bytes() == whole


def test_a_compiler_for_another_kind_of_processor_is_spared_the_flags_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of ARM ends with an error where it is told how wide vectors of x86 shall be."""
    usual = shutil.which("cc") or shutil.which("gcc")
    if usual is None:
        pytest.skip("no compiler")
    other = tmp_path / "cc"
    other.write_text(f'#!/bin/sh\ncase " $* " in *-mprefer-vector-width*) exit 1;; esac\nexec {usual} "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("CC", str(other))
    assert native_code.library(fused_ops.SOURCE, fused_ops.FLAGS) is not None
    assert native_code.features()
