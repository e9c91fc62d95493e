"""One run in an output directory: gone with its process, and never in the way of what lies there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gym_core import BusyError, RecipeError
from gym_core.outputlock import OutputLock

HOLDER = """
import os, sys
from pathlib import Path
from gym_core.outputlock import OutputLock
with OutputLock(Path(sys.argv[1])):
    worker = sys.argv[2] == "fork" and os.fork() == 0
    if worker or sys.argv[2] != "fork":  # a worker speaks once it runs, and no longer holds the lock
        print("locked", flush=True)
    sys.stdin.read()
    if worker:
        os._exit(0)
"""


@contextmanager
def holder(directory: Path, how: str = "plain") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "locked\n"
    try:
        yield process
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def free(directory: Path) -> bool:
    with OutputLock(directory):
        return True


def test_a_second_process_is_told_who_has_it(tmp_path: Path):
    with holder(tmp_path / "a" / "run") as process:
        with pytest.raises(BusyError) as caught:
            free(tmp_path / "a" / "run")
        (problem,) = caught.value.problems
        assert f"pid: {process.pid}, started: 20" in problem.why
        assert problem.key == "output"
        assert problem.where == str(tmp_path / "a" / "run")
        assert len(str(problem).splitlines()) <= 4
        assert free(tmp_path / "b")
    assert free(tmp_path / "a" / "run")


def test_the_same_process_cannot_take_it_twice(tmp_path: Path):
    with OutputLock(tmp_path), pytest.raises(BusyError):
        free(tmp_path)
    assert free(tmp_path)


def test_another_path_to_the_same_directory_is_the_same(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with OutputLock(tmp_path / "link"), pytest.raises(BusyError):
        free(tmp_path / "real")


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("how", ["plain", "fork"])
def test_kill_gives_it_back_even_while_a_worker_lives(tmp_path: Path, how: str):
    with holder(tmp_path, how) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert free(tmp_path)


def test_an_error_inside_gives_it_back(tmp_path: Path):
    with pytest.raises(KeyError), OutputLock(tmp_path):
        raise KeyError
    assert free(tmp_path)


def test_what_lies_there_is_not_touched(tmp_path: Path):
    (tmp_path / "model").write_text("precious")
    assert free(tmp_path)
    assert (tmp_path / "model").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == [OutputLock.NAME, "model"]


def test_places_that_cannot_be_used(tmp_path: Path):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / OutputLock.NAME).symlink_to(tmp_path / "file")
    for name in ("file", "file/below", "dangling", "trap", "x" * 300):
        with pytest.raises(RecipeError) as caught:
            free(tmp_path / name)
        assert caught.value.problems[0].key == "output"
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(RecipeError, match="Permission"):
        free(tmp_path / "run")
