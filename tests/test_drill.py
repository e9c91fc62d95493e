"""`gym drill` as a user runs it."""

from __future__ import annotations

import json

RECIPE = """\
model: tiny
data: {sources: [{name: tiny-tasks, count: 96}], validation: 8}
algorithm: sft
adapter: {name: lora, rank: 4}
train: {batch_size: 4, learning_rate: 1.0e-3, plot: false, precision: fp32}
"""


def test_a_drill_kills_resumes_and_compares(gym, tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE)
    done = gym("drill", "r.yaml", "--kills", "1", "--steps", "6", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == "identical" and report["difference"] == ""
    assert report["kills"] == 1 and report["signals"] == 1 and report["steps"] == 6
    assert sum(report["phases"].values()) == 1
    assert [hit["signal"] for hit in report["hits"]].count("SIGKILL") == 1
    assert all(hit["resumed"] == "the start" or hit["resumed"].startswith("step-") for hit in report["hits"])
    assert "uninterrupted: 6 steps" in done.stderr and "train.save_every=1" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.yaml"]


def test_a_drill_of_a_recipe_that_fails_says_why(gym, tmp_path, environment):
    (tmp_path / "r.yaml").write_text(RECIPE.replace("model: tiny", "model: nowhere"))
    environment["TMPDIR"] = str(tmp_path)
    done = gym("drill", "r.yaml", "--kills", "1")
    assert done.returncode == 1
    assert "exit code" in done.stderr and "nowhere" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_recipe_is_refused_before_anything_runs(gym, tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE + "outputs: x\n")
    done = gym("drill", "r.yaml")
    assert done.returncode == 2 and "outputs" in done.stderr
