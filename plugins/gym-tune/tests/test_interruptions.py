"""Studies that are killed, stopped, or begun twice."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hills_package import SPACE, Tune, Write

from gym_core.errors import BUSY, TERMINATED

SLOW: dict[str, Any] = {"algorithm": {"name": "hill", "pause": 0.02}, "train": {"max_steps": 20, "eval_every": 2}}
GIVEN: dict[str, Any] = {"n_trials": 3, "pruner": {"name": "median", "n_startup_trials": 1}, "space": SPACE}


def started(study: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command."""
    command = [sys.executable, "-m", "gym_core.cli", "tune", str(study), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rows(folder: Path) -> list[dict[str, str]]:
    """Return the lines of `trials.csv`, without what the clock decides."""
    lines = csv.DictReader((folder / "trials.csv").read_text().splitlines())
    pruned = ("seconds", "steps")  # a run that is told to stop may take a step more
    return [{key: value for key, value in row.items() if key not in pruned} for row in lines]


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not come"
        time.sleep(0.02)


def test_a_study_that_is_killed_again_and_again_is_that_of_one_that_was_left_alone(
    write: Write, tune: Tune, tmp_path: Path
):
    tune(base=SLOW, **GIVEN, output=str(tmp_path / "whole"))
    study, draw = write(SLOW, **GIVEN), random.Random(3)
    runs = [tmp_path / f"study/trials/{number:04d}" for number in range(3)]
    for run in runs:
        process = started(study)
        wait_for(run / "run.json")
        time.sleep(draw.uniform(0.0, 0.4))
        process.kill()
        process.communicate()
    process = started(study)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert rows(tmp_path / "study") == rows(tmp_path / "whole")
    assert any(json.loads((run / "run.json").read_text())["resumed"] for run in runs), "a run went on where it was"


def test_a_study_that_is_stopped_leaves_no_run_behind_and_goes_on(write: Write, tmp_path: Path):
    study = write({**SLOW, "train": {"max_steps": 200, "eval_every": 2}}, **{**GIVEN, "n_trials": 1})
    process, run = started(study), tmp_path / "study/trials/0000"
    wait_for(run / "state.json")
    second = started(study)
    said = second.communicate(timeout=60)[0]
    assert second.returncode == BUSY and "is in use by another run" in said
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == TERMINATED and "run the same command to continue" in said
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    step = json.loads((run / "state.json").read_text())["step"]
    assert 0 < step < 200
    process = started(study, "--json")
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and json.loads(said[said.index("{") :])["trials"]["complete"] == 1
    assert json.loads((run / "run.json").read_text())["resumed"] == 1


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_a_run_ends_with_a_study_that_is_killed(write: Write, tmp_path: Path):
    study = write({**SLOW, "train": {"max_steps": 3000, "eval_every": 2}}, **{**GIVEN, "n_trials": 1})
    process, run = started(study), tmp_path / "study/trials/0000"
    wait_for(run / "state.json")
    pid = json.loads((run / ".lock").read_text())["pid"]
    process.kill()
    process.communicate()
    end = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < end:
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
