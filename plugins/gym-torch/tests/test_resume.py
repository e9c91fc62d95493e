"""A run that was stopped and one that was not end in the same place, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from gym_torch_bench import (
    Crash,
    Event,
    Memory,
    Prepared,
    make_run,
    metrics,
    same,
    state,
    train,
    weights,
)

from gym_core import DataError, GymError, Interrupted
from gym_testkit import warm
from gym_torch import EarlyStopping

SETTINGS: dict[str, Any] = {"save_every": 3, "log_every": 2, "eval_every": 5, "keep_last": 9}


@pytest.fixture(scope="module")
def whole(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of a run that nothing disturbed."""
    output = tmp_path_factory.mktemp("whole") / "run"
    train(make_run(model_path, output, Memory(held_out=6), **SETTINGS))
    return output


def check(output: Path, whole: Path) -> None:
    """Weights, optimizer state and every logged number are the same."""
    assert same(weights(output), weights(whole))
    ours, theirs = state(output, 10), state(whole, 10)
    assert same(ours[0], theirs[0])
    assert ours[1] == theirs[1]
    assert metrics(output) == metrics(whole)
    lines = [(path / "trainer_log.jsonl").read_text().count("\n") for path in (output, whole)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("step", [1, 3, 5, 8, 10])
def test_a_crash_anywhere_changes_nothing(model_path: Path, whole: Path, tmp_path: Path, step: int) -> None:
    data = Memory(held_out=6)
    with pytest.raises(Crash):
        train(make_run(model_path, tmp_path, data, sections={"callbacks": (Event(step=step),)}, **SETTINGS))
    train(make_run(model_path, tmp_path, data, **SETTINGS))
    check(tmp_path, whole)


@pytest.fixture
def heeds_closing() -> Iterator[None]:
    """Begin as in a terminal, also where the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heeds_closing")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("step", [4, 5])
def test_a_signal_leaves_a_checkpoint_where_it_came(
    model_path: Path, whole: Path, tmp_path: Path, step: int, number: int
) -> None:
    data, all_of = Memory(held_out=6), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(each) for each in all_of]
    with pytest.raises(Interrupted) as caught:
        event = Event(step=step, signal=number)
        train(make_run(model_path, tmp_path, data, sections={"callbacks": (event,)}, **SETTINGS))
    assert caught.value.code == 128 + (signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
    assert [signal.getsignal(each) for each in all_of] == handlers
    assert (tmp_path / "checkpoints" / f"step-{step:08d}").is_dir()
    train(make_run(model_path, tmp_path, data, **SETTINGS))
    check(tmp_path, whole)


def test_a_closed_terminal_is_nothing_to_who_ignores_it(model_path: Path, tmp_path: Path) -> None:
    """As `nohup` has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        train(make_run(model_path, tmp_path, Memory(), sections={"callbacks": (Event(step=4, signal=1),)}, **SETTINGS))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_damaged_checkpoint_costs_steps_and_nothing_else(
    model_path: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Memory(held_out=6)
    with pytest.raises(Crash):
        train(make_run(model_path, tmp_path, data, sections={"callbacks": (Event(step=8),)}, **SETTINGS))
    file = tmp_path / "checkpoints" / "step-00000006" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    train(make_run(model_path, tmp_path, data, **SETTINGS))
    said = capsys.readouterr().err
    assert "step-00000006 is refused: optimizer.safetensors" in said
    assert "continuing from step-00000003" in said
    check(tmp_path, whole)


@pytest.mark.parametrize("moment", ["checkpoint", "anytime"])
def test_kill_9_changes_nothing(model_path: Path, whole: Path, tmp_path: Path, moment: str) -> None:
    """Kill a child again and again, inside checkpoint writes or at random, until a start gets through.

    Its disk is a slow one, so that there is time to kill it wherever the files of the test lie.
    """
    draw = random.Random(moment)
    code = (
        "from pathlib import Path\nfrom gym_torch_bench import train_in_child\n"
        f"train_in_child(Path({str(model_path)!r}), Path({str(tmp_path)!r}), 6, {SETTINGS | {'save_every': 1}!r}, 0.002)"
    )
    kills, inside = 0, 0
    while True:
        child = warm.start("-c", code, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)})
        if kills < 4:
            before = newest(tmp_path)
            deadline = time.monotonic() + 30
            while child.poll() is None and newest(tmp_path) <= before + 1 and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(draw.uniform(0, 0.02) if moment == "anytime" else 0)
            while moment == "checkpoint" and child.poll() is None and not building(tmp_path):
                time.sleep(0.0005)
            child.kill()
        status = child.wait()
        assert status in (0, -signal.SIGKILL), child.said()
        kills += status != 0
        inside += building(tmp_path)
        if status == 0:
            break
    assert kills
    assert inside or moment == "anytime"
    # An extra log line or checkpoint is no difference; weights, optimizer and metrics are what they are.
    check(tmp_path, whole)


def building(output: Path) -> bool:
    return any((output / "checkpoints").glob(".step-*.building"))


def newest(output: Path) -> int:
    return max((int(path.name[5:]) for path in (output / "checkpoints").glob("step-*")), default=0)


def test_early_stopping_counts_on_after_a_crash(model_path: Path, tmp_path: Path) -> None:
    data = Memory(held_out=6)
    stops = (EarlyStopping(patience=3, threshold=100.0), EarlyStopping(patience=9))  # each by its own count
    settings = {"eval_every": 1, "save_every": 1, "log_every": 1}
    for name, event in (("plain", ()), ("crashed", (Event(step=3),))):
        if event:
            with pytest.raises(Crash):
                train(make_run(model_path, tmp_path / name, data, sections={"callbacks": (*stops, *event)}, **settings))
        train(make_run(model_path, tmp_path / name, data, sections={"callbacks": stops}, **settings))
    assert metrics(tmp_path / "plain") == metrics(tmp_path / "crashed")
    assert metrics(tmp_path / "plain")[-1]["step"] == 4
    assert "eval_loss" in json.loads((tmp_path / "plain" / "run.json").read_text())["training"]["stopped"]


class Dated(Memory):
    """Notes the day it was told."""

    def build(self, **context: Any) -> Prepared:
        TOLD.append(context["day"])
        return super().build(**context)


TOLD: list[date] = []


def test_a_run_that_goes_on_later_is_still_of_the_day_it_began(model_path: Path, tmp_path: Path) -> None:
    """So a chat template that asks for the date makes the samples of the checkpoint again."""
    with pytest.raises(Crash):
        run = make_run(model_path, tmp_path, Dated(), sections={"callbacks": (Event(step=4),)}, **SETTINGS)
        run.record.update(started="2024-07-26T23:59:59Z")
        train(run)
    train(make_run(model_path, tmp_path, Dated(), **SETTINGS))
    assert [date(2024, 7, 26)] * 2 == TOLD


def test_other_data_and_other_parameters_are_refused_by_name(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        train(make_run(model_path, tmp_path, sections={"callbacks": (Event(step=4),)}, **SETTINGS))
    with pytest.raises(DataError, match="fingerprint was memory-0, is memory-7"):
        train(make_run(model_path, tmp_path, Memory(seed=7), **SETTINGS))
    state_file = tmp_path / "checkpoints" / "step-00000003"
    assert state_file.is_dir()


def test_a_run_that_died_while_writing_the_model_only_writes_it_again(model_path: Path, tmp_path: Path) -> None:
    train(make_run(model_path, tmp_path, **SETTINGS))
    before = weights(tmp_path)
    (tmp_path / "model").rename(tmp_path / ".model.1-00000000.building")
    train(make_run(model_path, tmp_path, **SETTINGS))
    assert same(weights(tmp_path), before)


def test_conditions_that_changed_are_named(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        train(make_run(model_path, tmp_path, sections={"callbacks": (Event(step=4),)}, **SETTINGS))
    run = make_run(model_path, tmp_path, **SETTINGS)
    model = replace(run.recipe.model.build(run=run), precision="bf16")
    with pytest.raises(GymError, match="the precision was fp32 when the checkpoint was written, and is bf16"):
        run.recipe.algorithm.build(run=run, model=model).train()
