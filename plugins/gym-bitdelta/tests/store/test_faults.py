"""Writers that are killed and disks that fill up: no variant is lost, and none is half there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(os.name != "posix", reason="SIGKILL, forks and mounts are POSIX")


def done(*command: str) -> str:
    """Run a script of this folder with real processes, and return what it prints."""
    ended = subprocess.run([*command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def mounts() -> bool:
    """Whether this machine lets us mount a file system of our own."""
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_writers_killed_at_random_moments_lose_nothing_and_leave_no_half_variant(tmp_path, kills):
    """Four processes create, update and remove; each one that is killed is followed by one that checks what it left."""
    found = json.loads(done(sys.executable, str(HERE / "kills.py"), "random", str(tmp_path), str(kills), "4", "7"))
    assert found["kills"] == kills and found["operations"] > kills
    assert found["dead"] >= 1, "nobody was killed with files open"


@pytest.mark.parametrize("every", [45, pytest.param(1, marks=pytest.mark.slow)])
def test_a_writer_killed_at_a_line_leaves_the_version_before_or_the_one_after(tmp_path, every):
    found = json.loads(done(sys.executable, str(HERE / "kills.py"), "lines", str(tmp_path / "root"), str(every)))
    assert found.keys() == {"found", "create", "update", "evaluated", "remove", "gc"}
    assert min(found.values()) > every


@pytest.mark.skipif(not mounts(), reason="no file system can be mounted here")
def test_a_disk_that_fills_up_keeps_what_was_there(tmp_path):
    rooms = ["0", "4096", "20000", "50000", "70000", "4000000"]
    command = ["unshare", "-rm", sys.executable, str(HERE / "full_disk.py"), str(tmp_path), *rooms]
    trials = [json.loads(line) for line in done(*command).splitlines()]
    for found in trials:
        assert found["held"] == found["expected"]
        for said in filter(None, found["said"]):
            assert "full" in said and len(said.splitlines()) <= 4, said
    assert all(trials[0]["said"]) and not any(trials[-1]["said"])
