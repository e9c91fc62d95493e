"""Each tracker has what metrics.jsonl has, once; one that fails, hangs or is missing stops no run."""

from __future__ import annotations

import json
import sqlite3
import struct
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from gym_core import GymError, Run, load_recipe
from gym_core.record import RunRecord
from gym_testkit.bench import Bench
from gym_torch.observer import Progress
from gym_track import TensorBoard, Tracker, WandB
from gym_track.writer import Start


def recipe(bench: Bench, *names: Any) -> dict[str, Any]:
    """A run of four steps that evaluates twice."""
    made = bench.recipe("sft", max_steps=4, eval_every=2, save_every=2)
    return made | {"data": {"sources": [made["data"]], "validation": 4}, "callbacks": list(names)}


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read event files: length, checksum, record, checksum, ..."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.glob("events*")):
        left = file.read_bytes()
        while left:
            size = struct.unpack("<Q", left[:8])[0]
            event = Event.FromString(left[12 : 12 + size])
            left = left[16 + size :]
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def logged(output: Path, name: str) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line[name]) for line in lines if name in line]


def test_tensorboard_has_what_the_log_has(bench: Bench) -> None:
    output = bench.run(recipe(bench, "tensorboard")).outcome.output
    found = events(output / "tensorboard")
    for tag, name in (("train/loss", "loss"), ("train/learning_rate", "learning_rate"), ("eval/loss", "eval_loss")):
        steps, values = zip(*found[tag], strict=True)
        assert list(steps) == [step for step, _ in logged(output, name)]
        assert values == pytest.approx([value for _, value in logged(output, name)], rel=1e-6)
    assert "recipe/text_summary" in found


class Sheet(Tracker):
    """A tracker of a stranger, which keeps a list."""

    writer: ClassVar[str] = "gym_track_sheet:opened"
    fails_at: int = 0
    """Step at which it fails; 0: never."""
    waits: float = 0.0
    """Seconds that it takes for a step."""


WRITTEN: list[tuple[str, int, dict[str, float]]] = []


class Written:
    """What it keeps."""

    def __init__(self, config: Sheet, start: Start) -> None:
        self.config, self.id = config, start.id or "first"

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        if step == self.config.fails_at:
            raise OSError("no such server")
        time.sleep(self.config.waits)
        WRITTEN.append((self.id, step, dict(figures)))

    def close(self) -> None:
        WRITTEN.append((self.id, -1, {}))


@pytest.fixture
def follow(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Follow steps of a run by a tracker, in a process that ends before its end or at it."""
    module = ModuleType("gym_track_sheet")
    module.opened = Written  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gym_track_sheet", module)
    WRITTEN.clear()
    run = Run(load_recipe(bench.recipe("sft")), bench.path("out"), RunRecord(bench.root / "out.json"))
    run.output.mkdir()

    def following(config: Sheet, steps: range) -> None:
        observer = config.build(run=run)
        observer.started(Progress(total=8, step=steps.start))
        for step in steps:
            observer.logged(Progress(total=8, step=step + 1), {"step": step + 1, "loss": 1 / (step + 1), "why": "text"})
        observer.closed()

    return following


def test_no_step_is_sent_twice_by_a_run_that_goes_on(follow: Any) -> None:
    follow(Sheet(), range(4))
    follow(Sheet(), range(2, 6))  # from the checkpoint of step 2
    sent = [(id, step) for id, step, _ in WRITTEN if step > 0]
    assert sent == [("first", step) for step in range(1, 7)]
    assert WRITTEN[0][2] == {"train/loss": 1.0}


def test_one_that_fails_or_hangs_is_said_and_left(follow: Any, capsys: pytest.CaptureFixture[str]) -> None:
    follow(Sheet(fails_at=3), range(6))
    assert [step for _, step, _ in WRITTEN] == [1, 2]
    assert "no such server; the run goes on" in capsys.readouterr().err.replace("\n", " ")
    began = time.monotonic()
    follow(Sheet(waits=9.0, patience=0.2), range(6, 8))
    assert time.monotonic() - began < 5 and "still sending" in capsys.readouterr().err


def test_a_package_that_is_missing_is_said_before_anything_is_loaded() -> None:
    class Absent(TensorBoard):
        """Its package is not there."""

        module: ClassVar[str] = "no_such_tracker"

    TensorBoard().check()
    with pytest.raises(GymError, match="needs no_such_tracker"):
        Absent().check()
    assert WandB().mode == "offline"


@pytest.mark.parametrize("name", ["wandb", "mlflow", "swanlab", "trackio"])
def test_the_others_write_files_of_the_run(name: str, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is an extra")
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    output = bench.run(recipe(bench, name)).outcome.output
    told = {path.stem.lower(): json.loads(path.read_text()) for path in (output / "trackers").iterdir()}
    assert told[name]["sent"] == {"train": 4, "eval": 4} and told[name]["id"]
    if name == "mlflow":
        with sqlite3.connect(output / "mlflow/mlflow.db") as base:
            rows = base.execute("select step, value from metrics where key = 'train/loss' order by step").fetchall()
        assert rows == logged(output, "loss")
    else:
        folder = {"wandb": "wandb", "swanlab": "swanlog", "trackio": "trackio"}[name]
        assert any(path.is_file() for path in (output / folder).rglob("*"))
