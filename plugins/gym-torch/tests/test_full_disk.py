"""A disk that fills up in the middle of a checkpoint costs the steps since the last one, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from full_disk import SETTINGS
from gym_torch_bench import Memory, make_run, metrics, same, train, weights

from gym_testkit import warm
from gym_torch.checkpoints.checkpoint_folders import problem
from gym_torch.loop.callbacks.json_lines_base import JsonLines

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def whole(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of a run with all the room it wants."""
    output = tmp_path_factory.mktemp("whole") / "run"
    train(make_run(model_path, output, Memory(held_out=6), **SETTINGS))
    return output


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def mounts() -> bool:
    """Whether this machine lets us mount a file system of our own."""
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not mounts(), reason="no file system can be mounted here")
def test_a_disk_that_is_full_at_byte_k(model_path: Path, whole: Path, tmp_path: Path) -> None:
    one = size(whole / "checkpoints" / "step-00000006")
    shares = [0.1, 0.97, 1.3, 2.6]
    disk = tmp_path / "disk"
    disk.mkdir()
    rooms = [str(int(one * share)) for share in shares]
    command = [sys.executable, str(HERE / "full_disk.py"), str(model_path), str(disk), str(whole), *rooms]
    done = subprocess.run(["unshare", "-rm", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    trials = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(trials) == len(shares)
    for found in trials:
        assert "No space left on device" in found["message"]
        assert len(found["message"].splitlines()) <= 4
        assert found["sound"] and found["exact"]
    assert [len(found["kept"]) for found in trials] == [0, 0, 1, 2]
    assert "continues from the start" in trials[0]["message"]
    assert "continues from step-00000002" in trials[2]["message"]


@pytest.mark.skipif(os.name != "posix", reason="limits of a process are POSIX")
@pytest.mark.parametrize("share", [0.01, 0.6, 0.999])
def test_a_file_that_may_not_grow(model_path: Path, whole: Path, tmp_path: Path, share: float) -> None:
    largest = max(file.stat().st_size for file in (whole / "checkpoints").rglob("*") if file.is_file())
    asked = f"limited(Path({str(model_path)!r}), Path({str(tmp_path)!r}), {int(largest * share)})"
    code = f"from pathlib import Path\nfrom full_disk import limited\nprint({asked})"
    done = warm.run("-c", code, env={**os.environ, "PYTHONPATH": str(HERE)}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    message = done.stdout.strip()
    assert "could not be written: File too large" in message and len(message.splitlines()) <= 4
    assert not any(problem(path) for path in (tmp_path / "checkpoints").glob("step-*"))
    assert not list((tmp_path / "checkpoints").glob(".*"))
    train(make_run(model_path, tmp_path, Memory(held_out=6), **SETTINGS))
    assert same(weights(tmp_path), weights(whole))
    assert metrics(tmp_path) == metrics(whole)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_metrics_that_do_not_fit_are_named() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        JsonLines(Path("/dev/full")).append({"step": 1})
