"""What a run is worth: by the lines that it wrote, however they were cut short or written again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gym_tune.metric import FILE, Metric, Value, keys, steps
from gym_tune.report import noise, told
from gym_tune.rows import with_other_rows


def write(folder: Path, lines: list[dict[str, float | None]], end: str = "") -> None:
    """Write `metrics.jsonl`."""
    (folder / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines) + end)


def test_values_come_in_the_order_of_the_steps_and_a_line_cut_short_does_not_count(tmp_path: Path):
    metric = Metric("eval_loss", "minimize")
    assert metric.values(tmp_path) == [], "no file yet"
    lines: list[dict[str, float | None]] = [
        {"step": 0, "eval_loss": 9.0}, {"step": 5, "loss": 1.0}, {"step": 5, "eval_loss": 4.0},
        {"step": 10, "eval_loss": None}, {"step": 15, "eval_loss": 3.0}, {"step": 5, "eval_loss": 4.5},
    ]  # fmt: skip
    write(tmp_path, lines, '{"step": 20, "eval_loss": 1.0')
    first, again, void, last = metric.values(tmp_path)
    assert (first, again, last) == (Value(0, 9.0), Value(5, 4.5), Value(15, 3.0)), (
        "a step that was repeated counts once"
    )
    assert void.step == 10 and math.isnan(void.value)
    assert keys(tmp_path / FILE) == ["eval_loss", "loss"] and steps(tmp_path / FILE) == 15


@pytest.mark.parametrize(
    ("metric", "worth"),
    [
        (Metric("m", "minimize"), 4.0),
        (Metric("eval_m", "minimize", kept="eval_m"), 2.0),
        (Metric("eval_m", "maximize", kept="eval_m", kept_direction="maximize"), 6.0),
        (Metric("eval_m", "maximize", kept="eval_m"), 2.0),
        (Metric("eval_n", "minimize", kept="eval_m"), 12.0),
        (Metric("m", "minimize", kept="eval_m"), 4.0),
        (Metric("m", "minimize", average_over=2), 5.0),
        (Metric("m", "minimize", average_over=9), 19 / 5),
    ],
)
def test_a_run_is_worth_its_last_value_or_that_of_its_best_model(tmp_path: Path, metric: Metric, worth: float):
    values = dict(enumerate([1.0, 6.0, 2.0, 6.0, 4.0]))
    write(tmp_path, [{"step": at, "m": m, "eval_m": m, "eval_n": 10.0 + at} for at, m in values.items()])
    assert metric.result(tmp_path) == pytest.approx(worth), "what was measured before training is no best one"


@pytest.mark.parametrize("values", ['"text"', "[1]", "NaN", "1e999", "-1e999 1e999", "1e308 1e308"])
def test_what_is_no_number_or_too_large_is_no_accident(tmp_path: Path, values: str):
    (tmp_path / FILE).write_text(
        "".join(f'{{"step": {at}, "m": {value}}}\n' for at, value in enumerate(values.split()))
    )
    assert math.isfinite(Metric("m", "minimize", average_over=2).result(tmp_path)) == values.startswith("1e308")


@pytest.mark.parametrize(
    ("best", "own", "said"),
    [
        ([0.2, 0.21], [0.31, 0.3], "better by 0.1 at the same seeds, with a standard error of 0.01"),
        ([0.2, 0.9], [0.21, 0.92], "better by 0.015 at the same seeds, with a standard error of 0.005"),
        (
            [0.2, 0.3],
            [0.31, 0.21],
            "better by 0.01 at the same seeds, with a standard error of 0.1: no more than noise",
        ),
        (
            [0.3, 0.31],
            [0.2, 0.22],
            "worse by 0.095 at the same seeds, with a standard error of 0.005",
        ),
        ([0.2], [0.3], "two seeds or more would tell whether the difference is more than noise"),
    ],
)
def test_the_text_says_what_is_noise(best: list[float], own: list[float], said: str):
    found = {"trial": 1, "value": 0.2, "values": {}}
    outcome = {
        "trials": {"complete": 2}, "steps": 2, "seconds": 1.0, "best": found, "own": found, "metric": "eval_loss",
        "importance": {}, "other_rows": [], "repeats": {"best": noise(best), "own values": noise(own)}, "recipe": "best.yaml",
        "direction": "minimize",
    }  # fmt: skip
    assert told(outcome).splitlines()[-2] == said


def test_trials_whose_data_changed_are_told():
    def record(rows: str, cutoff: int, rate: float) -> dict[str, Any]:
        return {
            "data": {"fingerprint": rows},
            "settings": {"data.cutoff": cutoff, "train.learning_rate": rate, "train.seed": 0},
        }

    records = [record("a", 8, 0.1), record("b", 16, 0.1), record("a", 8, 0.2), {}, record("c", 8, 0.2)]
    assert with_other_rows(enumerate(records)) == [4]
