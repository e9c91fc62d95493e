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

from gym_core import Artifact, GymError, Run, load_recipe
from gym_core.record import RunRecord
from gym_testkit.bench import Bench
from gym_torch.observer import Progress
from gym_track import MLflow, TensorBoard, Tracker, WandB
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
    assert "eval/epoch" not in found, "which transformers calls train/epoch"
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
    named: str = "first"
    """What it calls a run that it does not know."""
    leaves: bool = False
    """Whether it asks the process to end."""


WRITTEN: list[tuple[str, int, dict[str, float]]] = []


class Written:
    """What it keeps."""

    def __init__(self, config: Sheet, start: Start) -> None:
        self.config, self.id = config, start.id or config.named
        if config.leaves:
            raise SystemExit(1)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        if step == self.config.fails_at:
            raise OSError("no such server")
        time.sleep(self.config.waits)
        WRITTEN.append((self.id, step, dict(figures)))

    def close(self, finished: bool) -> None:
        WRITTEN.append((self.id, -1 if finished else -2, {}))


@pytest.fixture
def follow(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Follow steps of a run by a tracker, in a process that ends before its end or at it."""
    module = ModuleType("gym_track_sheet")
    module.opened = Written  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gym_track_sheet", module)
    WRITTEN.clear()
    run = Run(load_recipe(bench.recipe("sft")), bench.path("out"), RunRecord(bench.root / "out.json"))
    run.output.mkdir()

    log = run.output / "metrics.jsonl"
    log.touch()

    def following(config: Tracker, steps: range, over: bool = False) -> None:
        lines = [line for line in log.read_text().splitlines() if json.loads(line)["step"] <= steps.start]
        log.write_text("".join(f"{line}\n" for line in lines))
        observer = config.build(run=run)
        observer.started(Progress(total=8, step=steps.start))
        for step in range(steps.start + 1, steps.stop + 1):
            record = {"step": step, "loss": 1 / step, "why": "text"}
            log.write_text(log.read_text() + json.dumps(record) + "\n")
            observer.logged(Progress(total=8, step=step), record)
        if over:
            observer.ended(Progress(total=8, step=steps.stop), Artifact(run.output, "model"))
        observer.closed()

    return following


def test_no_step_is_sent_twice_by_a_run_that_goes_on(follow: Any) -> None:
    follow(Sheet(), range(4))
    follow(Sheet(), range(2, 6))  # from the checkpoint of step 2
    sent = [(id, step) for id, step, _ in WRITTEN if step > 0]
    assert sent == [("first", step) for step in range(1, 7)]
    assert WRITTEN[0][2] == {"train/loss": 1.0}


def test_what_a_tracker_missed_is_sent_when_the_run_goes_on(follow: Any) -> None:
    follow(Sheet(fails_at=3), range(4))
    follow(Sheet(), range(4, 6))
    assert [step for _, step, figures in WRITTEN if figures] == [1, 2, 3, 4, 5, 6]


def test_the_run_is_known_there_before_its_first_figure(follow: Any) -> None:
    follow(Sheet(named="theirs", fails_at=1), range(1))
    follow(Sheet(named="another"), range(1, 2))
    assert [(id, step) for id, step, figures in WRITTEN if figures] == [("theirs", 1), ("theirs", 2)]


def test_a_tracker_is_told_whether_the_run_came_to_its_end(follow: Any) -> None:
    follow(Sheet(), range(2))
    follow(Sheet(), range(2, 4), over=True)
    assert [step for _, step, figures in WRITTEN if not figures] == [-2, -1]


def test_one_that_leaves_the_process_is_said_too(follow: Any, capsys: pytest.CaptureFixture[str]) -> None:
    follow(Sheet(leaves=True), range(2))
    assert "Sheet failed and is left out" in capsys.readouterr().err


def test_what_is_noted_as_sent_is_on_the_disk(bench: Bench, tmp_path: Path) -> None:
    run = Run(load_recipe(bench.recipe("sft")), tmp_path, RunRecord(tmp_path / "run.json"))
    observer = TensorBoard().build(run=run)
    observer.started(Progress(total=8))
    for step in (1, 2, 3):
        observer.logged(Progress(total=8, step=step), {"step": step, "loss": 1.0})
    noted, until = tmp_path / "trackers" / "TensorBoard.json", time.monotonic() + 10
    while not (noted.exists() and json.loads(noted.read_text())["sent"].get("train") == 3) and time.monotonic() < until:
        time.sleep(0.01)
    assert [step for step, _ in events(tmp_path / "tensorboard")["train/loss"]] == [1, 2, 3]
    observer.closed()


def test_two_of_a_kind_are_two_runs_there(bench: Bench, tmp_path: Path) -> None:
    other = tmp_path / "other"
    output = bench.run(recipe(bench, "tensorboard", {"name": "tensorboard", "folder": str(other)})).outcome.output
    assert events(output / "tensorboard") == events(other)
    told = {json.loads(file.read_text())["id"] for file in (output / "trackers").iterdir()}
    assert told == {str(output / "tensorboard"), str(other)}


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
            assert base.execute("select status from runs").fetchall() == [("FINISHED",)]
        assert rows == logged(output, "loss")
    else:
        folder = {"wandb": "wandb", "swanlab": "swanlog", "trackio": "trackio"}[name]
        assert any(path.is_file() for path in (output / folder).rglob("*"))


def test_a_run_of_mlflow_goes_on_under_its_name_and_takes_any_figure(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    run = Run(load_recipe(bench.recipe("sft")), tmp_path, RunRecord(tmp_path / "run.json"))
    for step, status in ((1, "KILLED"), (2, "FINISHED")):
        observer = MLflow().build(run=run)
        observer.started(Progress(total=2, step=step - 1))
        observer.logged(Progress(total=2, step=step), {"step": step, "share of rows (%)": 1.0})
        if status == "FINISHED":
            observer.ended(Progress(total=2, step=step), Artifact(tmp_path, "model"))
        observer.closed()
        with sqlite3.connect(tmp_path / "mlflow/mlflow.db") as base:
            assert base.execute("select status from runs").fetchall() == [(status,)]
            rows = base.execute("select key, step from metrics order by step").fetchall()
        assert rows == [("train/share of rows ___", each) for each in range(1, step + 1)]
