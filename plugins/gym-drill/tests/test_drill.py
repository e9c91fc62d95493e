"""The parts of `gym drill`: what it sees of a run, when it strikes, and that it misses no difference."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from gym_torch_bench import Memory, make_run, train

from gym_core import GymError
from gym_drill.command import carried_out
from gym_drill.drill import Running
from gym_drill.kill_schedule import plan
from gym_drill.run_difference import first_difference
from gym_drill.run_phases import CHECKPOINT, ENDING, EVALUATION, EXIT, EXPORT, FINAL, START, TRAINING, Course, Watch

LAST = "checkpoints/step-00000004"


@pytest.fixture(scope="module")
def done(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of a finished run of four steps, with a file of another runtime and codes beside its weights."""
    output = tmp_path_factory.mktemp("done") / "run"
    train(make_run(model_path, output, Memory(held_out=6), max_steps=4, save_every=2, eval_every=2))
    (output / "export/gguf").mkdir(parents=True)
    (output / "export/gguf/model.gguf").write_bytes(b"GGUF")
    shutil.copytree(output / "model", output / "quantized")
    return output


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


HARM: dict[str, tuple[Callable[[Path], None], str]] = {
    "a bit of a weight": (lambda run: flip(run / "model/model.safetensors"), "model/model.safetensors: "),
    "a bit of the optimizer": (lambda run: flip(run / LAST / "optimizer.safetensors"), "/optimizer.safetensors: "),
    "a bit of the last weights": (lambda run: flip(run / LAST / "model.safetensors"), f"{Path(LAST).name}/model"),
    "a metric": (lambda run: edit(run / "metrics.jsonl", '"loss": ', '"loss": 1'), "metrics.jsonl line 1, loss: "),
    "a lost line": (lambda run: (run / "metrics.jsonl").write_text(""), "metrics.jsonl: lines: 6 without kills, 0"),
    "progress": (lambda run: edit(run / LAST / "state.json", '"step": 4', '"step": 5'), "state.json: progress, step"),
    "precision": (lambda run: edit(run / "run.json", "fp32", "bf16"), "run.json: precision"),
    "a lost file": (lambda run: (run / "model/model.safetensors").unlink(), "model: files"),
    "an export": (lambda run: (run / "export/x").mkdir(parents=True), "exports"),
    "a bit of an export": (lambda run: flip(run / "export/gguf/model.gguf"), "gguf/model.gguf differs in 1 of 4 bytes"),
    "a lost file of an export": (lambda run: (run / "export/gguf/model.gguf").unlink(), "gguf: files"),
    "a bit of a code": (lambda run: flip(run / "quantized/model.safetensors"), "quantized/model.safetensors: "),
    "a lost checkpoint": (lambda run: shutil.rmtree(run / LAST), "step of the last checkpoint: 4 without kills, 2"),
}


@pytest.mark.parametrize("harm", HARM)
def test_every_difference_is_named(done: Path, tmp_path: Path, harm: str) -> None:
    other = shutil.copytree(done, tmp_path / "other")
    assert first_difference(done, other) == ""
    change, named = HARM[harm]
    change(other)
    assert named in first_difference(done, other)


def test_what_the_clock_decides_is_no_difference(done: Path, tmp_path: Path) -> None:
    other = shutil.copytree(done, tmp_path / "other")
    edit(other / "metrics.jsonl", '"tokens_per_second": ', '"tokens_per_second": 1')
    edit(other / LAST / "state.json", '"seconds": ', '"seconds": 1')
    (other / "export/gguf/certificate.json").write_text("{}")
    assert first_difference(done, other) == ""


@pytest.mark.parametrize("kills", [1, 2, 20])
def test_as_many_kills_as_asked_for_all_over_the_run(kills: int) -> None:
    course = Course(30, frozenset({10, 20, 30}))
    blows = plan(kills, random.Random(3), course, [EXPORT])
    assert blows == plan(kills, random.Random(3), course, [EXPORT])
    assert blows == sorted(blows, key=lambda blow: blow.step)
    count = Counter(blow.signal for blow in blows)
    assert count[signal.SIGKILL] == kills
    assert sum(count.values()) - kills == max(1, kills // 5)
    if kills == 20:
        assert count[signal.SIGTERM] == count[signal.SIGINT] == 2
        assert {blow.phase for blow in blows} >= {START, TRAINING, EVALUATION, CHECKPOINT, FINAL}
        assert len({blow.step for blow in blows}) > 8


def test_a_watch_sees_what_a_run_does_and_not_what_another_left(done: Path, tmp_path: Path) -> None:
    output = shutil.copytree(done, tmp_path / "run")
    lines = (output / "metrics.jsonl").read_text().splitlines(keepends=True)
    course = Course.of(output)
    assert course == Course(4, frozenset({2, 4}))
    (output / ".model.1-00000000.building").mkdir()
    watch, file = Watch(output, course), output / "metrics.jsonl"
    assert watch.look() == (START, 4) and not watch.began

    def write(count: int) -> None:
        file.write_text("".join(lines[:count]))
        os.utime(file, ns=(count, count))

    write(1)
    assert watch.look() == (TRAINING, 1) and watch.began
    write(2)
    assert watch.look() == (EVALUATION, 2)
    write(3)
    assert watch.look() == (TRAINING, 2)
    (output / "checkpoints/.step-00000003.building").mkdir()
    assert watch.look() == (CHECKPOINT, 2)
    (output / "checkpoints/.step-00000003.building").rmdir()
    write(6)
    assert watch.look() == (ENDING, 4)
    edit(output / "run.json", "running", "finished")
    assert watch.look() == (EXIT, 4)
    (output / ".model.1-00000000.building/config.json").write_text("{}")
    assert watch.look() == (FINAL, 4)
    assert json.loads(lines[-1])["step"] == 4


def test_a_run_without_weights_is_refused_before_it_starts(tmp_path: Path) -> None:
    """Training-Free GRPO goes on from its journal: there is no checkpoint that a drill could look at."""
    pytest.importorskip("gym_training_free")
    (tmp_path / "rows.jsonl").write_text('{"question": "?", "answer": "!"}\n')
    (tmp_path / "recipe.yaml").write_text(
        "model: {backend: openai, path: m, base_url: 'http://127.0.0.1:9/v1'}\n"
        "algorithm: {name: training_free_grpo, dataset: rows.jsonl, rewards: [exact]}\n"
        "output: run\n"
    )
    started: list[object] = []

    def start(arguments: Sequence[str], log: Path) -> Running:
        started.append(arguments)
        raise AssertionError

    with pytest.raises(GymError, match="TorchBackend, which is asked of it here"):
        carried_out(tmp_path / "recipe.yaml", (), 1, 0, 4, start)
    assert not started
