"""Several processes: the numbers of one, checkpoints for any number, and an end with a name when one of them dies.

The processes are forked from one that has imported everything, and meet as torchrun has them meet: through its environment
variables and a store that none of them keeps. One test starts the real thing, `gym train --nproc 2`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from gym_core.outputlock import OutputLock
from gym_testkit.bench import Bench
from gym_testkit.team import Team, start

fresh = count()
STUCK = str(Path(__file__).parent / "stuck")  #: where an optimizer is installed that gets stuck
FULL: dict[str, Any] = {}
LORA: dict[str, Any] = {"adapter": {"name": "lora", "rank": 4, "dropout": 0.1}}
RUNS = {"full": (FULL, "model.neftune_noise_alpha=0"), "lora": (LORA, "model.neftune_noise_alpha=5")}
#: AdamW apart, what works on shards; a sign may come out the other way, so a rate is small where it decides.
NUMBERWISE: dict[str, tuple[dict[str, Any], str]] = {
    "lion": ({"optimizer": "lion"}, "train.learning_rate=0.0001"),
    "lora_plus": (LORA | {"optimizer": "lora_plus"}, "train.learning_rate=0.001"),
    "schedule_free_adamw": (
        {"optimizer": "schedule_free_adamw", "scheduler": "constant"},
        "model.neftune_noise_alpha=0",
    ),
    "sgd": ({"optimizer": {"name": "sgd", "momentum": 0.9}}, "model.neftune_noise_alpha=0"),
}
PATIENCE = 6  #: seconds that a process may be silent before it is missed
TRAIN = {"max_steps": 4, "batch_size": 2, "accumulate": 4, "save_every": 2, "eval_every": 2, "precision": "fp32"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def recipe(root: Path):
    """Return a function that writes a recipe and returns its file."""
    bench = Bench(root)

    def write(sections: dict[str, Any], **train: Any) -> str:
        body = bench.recipe("sft", **TRAIN | train)
        body["data"] = {"sources": [body["data"]], "validation": 4}
        file = root / f"recipe-{next(fresh)}.yaml"
        file.write_text(yaml.safe_dump(body | sections))
        return str(file)

    return write


@pytest.fixture(scope="module")
def trained(root: Path, recipe):
    """Return a function that gives the output of a finished run, trained once."""
    done: dict[str, Path] = {}

    def train(what: str, world: int, strategy: str = "ddp") -> Path:
        name = f"{what}-{world}-{strategy}"
        if name not in done:
            sections, noise = (RUNS | NUMBERWISE)[what]
            arguments = [recipe(sections), f"output={root / name}", f"distributed={strategy}", noise]
            team = start(world, *arguments)
            assert team.codes() == [0] * world, team.errors()
            done[name] = root / name
        return done[name]

    return train


def lines(output: Path) -> dict[tuple[int, bool], dict[str, float]]:
    """Return the lines of `metrics.jsonl` by step and kind; of a step done twice, the last."""
    found = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return {(line["step"], "eval_loss" in line): line for line in found}


def agree(one: Path, other: Path) -> None:
    left, right = lines(one), lines(other)
    assert left.keys() == right.keys()
    for key, line in left.items():
        for name in ("loss", "eval_loss"):
            assert abs(line.get(name, 0.0) - right[key].get(name, 0.0)) < 1e-5, (key, name)
        assert line.get("num_tokens") == right[key].get("num_tokens")
    (file,) = (path.name for path in (one / "model").glob("*.safetensors"))
    here, there = load_file(one / "model" / file), load_file(other / "model" / file)
    assert here.keys() == there.keys()
    assert max(float((here[name] - there[name]).abs().max()) for name in here) < 2e-3


WORLDS = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.mark.proves("adamw")
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("what", ["full", "lora"])
def test_any_number_of_processes_trains_the_same(trained, what: str, strategy: str, world: int) -> None:
    agree(trained(what, 1), trained(what, world, strategy))
    assert json.loads((trained(what, world, strategy) / "run.json").read_text())["training"]["processes"] == world


@pytest.mark.proves("lion", "lora_plus", "sgd")
@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.slow] * (what in ("lion", "sgd"))) for what in NUMBERWISE]
)
def test_what_works_number_by_number_trains_the_same_in_shards(trained, what: str) -> None:
    agree(trained(what, 1), trained(what, 2, "fsdp"))


@pytest.mark.parametrize(
    ("optimizer", "strategy", "code", "why"),
    [("galore", "fsdp", 2, "galore needs whole parameters"), ("lisa", "ddp", 1, "LISA trains in one process")],
)
def test_what_does_not_is_refused_by_name(root: Path, recipe, optimizer, strategy, code: int, why: str) -> None:
    arguments = [f"output={root / f'refused-{optimizer}'}", f"distributed={strategy}"]
    if strategy == "fsdp":
        arguments.append("model.path=nowhere")  # said before a model is asked for
    team = start(2, recipe({"optimizer": optimizer}), *arguments)
    assert team.codes(within=30) == [code, code], team.errors()
    assert why in team.errors() and team.errors().count("error:") == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, "ddp"), (1, "ddp")),
        ((1, "ddp"), (2, "fsdp")),
        pytest.param((2, "fsdp"), (4, "ddp"), marks=pytest.mark.slow),
        pytest.param((2, "ddp"), (4, "fsdp"), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("what", ["full", "lora"])
def test_any_number_of_processes_goes_on_from_a_checkpoint(root, trained, recipe, what, before, after) -> None:
    """Of a finished run the last checkpoint and the model are taken away, so that it goes on from step 2."""
    output = root / f"again-{next(fresh)}"
    copytree(trained(what, *before), output)
    rmtree(output / "checkpoints" / "step-00000004")
    rmtree(output / "model")
    record = json.loads((output / "run.json").read_text())
    (output / "run.json").write_text(json.dumps(record | {"status": "interrupted"}))
    sections, noise = RUNS[what]
    team = start(after[0], recipe(sections), f"output={output}", f"distributed={after[1]}", noise)
    assert team.codes() == [0] * after[0], team.errors()
    assert "continuing from step-00000002" in team.errors()
    agree(trained(what, 1), output)


def hanging(recipe, output: Path, late: int) -> Team:
    """Start two processes, and wait until one of them is stuck in its fourth step."""
    # Compiling may take longer than the bound; whether it pays is measured, and comes out now so, now so.
    quick = [f"distributed.timeout={PATIENCE}", "model.compile=false"]
    team = start(
        2, recipe({"optimizer": {"name": "stuck", "rank": late}}), f"output={output}", *quick, PYTHONPATH=STUCK
    )
    while "now it hangs" not in team.errors() and team.members[late].poll() is None:
        time.sleep(0.02)
    assert team.members[late].poll() is None, team.errors()
    return team


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("harm", "victim"),
    [
        (signal.SIGKILL, 1),
        (signal.SIGSTOP, 1),
        pytest.param(signal.SIGKILL, 0, marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, 0, marks=pytest.mark.slow),
    ],
)
def test_a_process_that_dies_or_stops_ends_the_run_by_name(root: Path, recipe, harm, victim: int) -> None:
    output = root / f"hurt-{next(fresh)}"
    team = hanging(recipe, output, victim)
    os.kill(team.members[victim].pid, harm)
    codes = team.codes(within=40)
    assert codes[1 - victim] == 1, (codes, team.errors())
    assert codes[victim] == (-9 if harm == signal.SIGKILL else 1)
    errors = team.errors().replace("now it hangs\n", "")  # which the other process may have written last
    told = errors[errors.index("error: ") :]
    assert len(told.strip().splitlines()) <= 4 and told.count("error:") == 1, told
    assert f"rank {victim} " in told and "samples " in told and "step " in told
    stacks = output / "stacks"
    shown = stacks / f"rank-{victim if harm == signal.SIGSTOP else 1 - victim}.txt"
    assert "gym_torch/loop/train_loop.py" in shown.read_text()
    if harm == signal.SIGSTOP:
        assert str(shown) in told
    if victim == 1:
        record = json.loads((output / "run.json").read_text())
        assert record["status"] == "failed" and "rank 1" in record["error"]["problems"][0]["why"]


@pytest.mark.parametrize("late", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_that_hangs_ends_the_run_with_its_stack(root: Path, recipe, late: int) -> None:
    output = root / f"late-{late}"
    team = hanging(recipe, output, late)
    assert team.codes() == [1, 1], team.errors()
    assert f"rank {late} does not come along for {PATIENCE} s" in team.errors() and "step 4, samples " in team.errors()
    assert team.errors().count("error:") == 1
    assert "in hang" in (output / "stacks" / f"rank-{late}.txt").read_text()


def test_an_error_of_the_main_process_is_said_once_and_ends_all(root: Path, recipe) -> None:
    output = root / "locked"
    with OutputLock(output):
        team = start(2, recipe(FULL), f"output={output}")
        assert team.codes(within=30) == [5, 5]
    assert team.errors().count("is in use by another run") == 1
    assert team.errors().count("error:") == 1


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_error_of_all_processes_is_said_once_and_recorded(root: Path, recipe, strategy: str) -> None:
    """Weights that overflow are seen by both processes; one says so."""
    output = root / f"broken-{strategy}"
    file = recipe(FULL, learning_rate=1e30, max_steps=9)
    team = start(2, file, f"output={output}", f"distributed={strategy}")
    assert team.codes(within=30) == [1, 1]
    assert team.errors().count("error:") == 1 and "not finite" in team.errors(), team.errors()
    record = json.loads((output / "run.json").read_text())
    assert record["status"] == "failed" and "not finite" in record["error"]["problems"][0]["why"]


def test_a_finished_run_is_not_trained_again(trained, recipe, root: Path) -> None:
    output = trained("full", 2, "ddp")
    team = start(2, recipe(FULL), f"output={output}")
    assert team.codes() == [0, 0]
    assert team.errors().count("finished already") == 1


GPUS = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_gpus_train_the_same(root: Path, recipe, strategy: str) -> None:
    outputs = [root / f"gpus-{strategy}-{world}" for world in (1, 2)]
    for world, output in enumerate(outputs, start=1):
        team = start(world, recipe(FULL), f"output={output}", f"distributed={strategy}", CUDA_VISIBLE_DEVICES=GPUS)
        assert team.codes() == [0] * world, team.errors()
    agree(*outputs)


def test_torchrun_underneath(root: Path, recipe) -> None:
    """`gym train --nproc 2` passes SIGTERM on; the same command without it goes on alone."""
    output, file = root / "launched", recipe(FULL, max_steps=100_000, save_every=100_000, eval_every=100_000)
    arguments = ["train", file, f"output={output}", "model.compile=false"]  # which would pay in so many steps
    command = [sys.executable, "-m", "gym_core.cli", *arguments]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen([*command, "--nproc", "2"], env=environment, stderr=subprocess.PIPE, text=True)
    metrics = output / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
        time.sleep(0.02)
    process.terminate()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 143, told
    assert told.count("error:") == 1 and "the checkpoint is complete" in told
    (checkpoint,) = (output / "checkpoints").glob("step-*")
    assert json.loads((output / "run.json").read_text())["status"] == "interrupted"
    team = start(1, *arguments[1:])
    while "continuing from" not in team.errors() and team.members[0].poll() is None:
        time.sleep(0.02)
    team.members[0].terminate()
    assert team.codes() == [143], team.errors()
    assert f"continuing from {checkpoint.name}" in team.errors()
