"""`gym drill` as a user runs it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from gym_core import GymError
from gym_drill.command import carried_out
from gym_drill.drill import started

RECIPE = """\
model: tiny
data: {sources: [{name: tiny-tasks, count: 96}], validation: 8}
algorithm: sft
adapter: {name: lora, rank: 4}
train: {batch_size: 4, learning_rate: 1.0e-3, plot: false, precision: fp32}
"""


@pytest.fixture
def begin(start):
    """Return what starts the processes of a drill, warm."""

    def begin(arguments, log):
        process = start(*arguments)
        log.symlink_to(process.err)  # where a run says what it does
        return process

    return begin


def scratch(said):
    """Return the directory in which a drill worked, by what it said."""
    return Path(re.search(r"seed 0, in (\S+);", said)[1])


def test_a_drill_kills_resumes_and_compares(begin, tmp_path, capsys):
    (tmp_path / "r.yaml").write_text(RECIPE)
    report = carried_out(tmp_path / "r.yaml", (), 1, 0, 6, begin)
    assert report["verdict"] == "identical" and report["difference"] == ""
    assert report["kills"] == 1 and report["signals"] == 1 and report["steps"] == 6
    assert sum(report["phases"].values()) == 1
    assert [hit["signal"] for hit in report["hits"]].count("SIGKILL") == 1
    assert all(hit["resumed"] == "the start" or hit["resumed"].startswith("step-") for hit in report["hits"])
    said = capsys.readouterr().err
    assert "uninterrupted: 6 steps" in said and "train.save_every=1" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.yaml"]
    assert not scratch(said).exists()


def test_a_drill_of_a_recipe_that_fails_says_why(begin, tmp_path, capsys):
    (tmp_path / "r.yaml").write_text(RECIPE.replace("model: tiny", "model: nowhere"))
    with pytest.raises(GymError, match=r"exit code 1 instead of 0: [\s\S]*nowhere"):
        carried_out(tmp_path / "r.yaml", (), 1, 0, 6, begin)
    kept = scratch(capsys.readouterr().err)
    assert (kept / "whole.log").exists()
    shutil.rmtree(kept)


def test_each_process_of_a_drill_is_a_new_python(tmp_path):
    process = started(["--version"], tmp_path / "log")
    assert process.wait(60) == 0
    assert "gym" in (tmp_path / "log").read_text()


def test_a_wrong_recipe_is_refused_before_anything_runs(gym, tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE + "outputs: x\n")
    done = gym("drill", "r.yaml")
    assert done.returncode == 2 and "outputs" in done.stderr
