"""When a run with compiled layers reaches its 50th step, beside one without, on the tiny model: LoRA, and full training.

A first run in an empty cache begins as it is, and a process beside it, or after it, compiles. Then both sides take turns, each a
whole command; times are from its start to the line that reports the step. `--quick` has two turns of LoRA alone, else four
of both.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import Report, main

from gym_core.record import RunRecord

STEPS = 50
PATIENCE = 600  #: seconds to wait for code
ADAPTERS: dict[str, Any] = {"lora": {"name": "lora", "rank": 16}, "full": "full"}
DATA = {"sources": [{"name": "tiny-tasks", "count": 3000, "split": "train", "seed": 0}], "cutoff": 512}


@dataclass(frozen=True)
class Measured:
    """What one command took, in seconds from its start, and what it ended with."""

    first: float  #: to the first step
    last: float  #: to the last one
    training: float  #: of its steps alone
    loss: float
    compiled: Any  #: as its record has it


def command(folder: Path, name: str, adapter: Any, compiled: bool) -> Measured:
    """Train, and return what it took."""
    output = folder / name
    recipe = {"model": {"path": "tiny", "compile": compiled}, "data": DATA, "algorithm": "sft", "adapter": adapter,
              "train": {"max_steps": STEPS, "batch_size": 32, "log_every": 1, "learning_rate": 4e-3, "warmup": 0.05},
              "output": str(output)}  # fmt: skip
    (folder / f"{name}.yaml").write_text(json.dumps(recipe))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["GYM_CACHE"] = str(folder / "cache")
    began, first, last = time.perf_counter(), 0.0, 0.0
    arguments = [str(Path(sys.executable).with_name("gym")), "train", str(folder / f"{name}.yaml")]
    with subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if line.startswith("step 1/"):
                first = time.perf_counter() - began
            if line.startswith(f"step {STEPS}/"):
                last = time.perf_counter() - began
        assert process.wait() == 0
    rows = [json.loads(row) for row in (output / "metrics.jsonl").read_text().splitlines()]
    record = RunRecord(output / "run.json").read()
    return Measured(first, last, record["training"]["seconds"], rows[-1]["loss"], record["compiled"])


def waited(folder: Path, notes: int) -> float:
    """Wait until so many notes of compiled layers are there; return what it took, in seconds."""
    began = time.perf_counter()
    while len(list(folder.glob("cache/compiled/*/layers-*/note.json"))) < notes:
        assert time.perf_counter() - began < PATIENCE, "nothing was compiled"
        time.sleep(1)
    return time.perf_counter() - began


def measure(report: Report, quick: bool) -> None:
    """Measure what is trained, one way after the other."""
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(["lora"] if quick else ADAPTERS):
            compare(report, Path(folder), name, notes=number + 1, turns=2 if quick else 4)


def compare(report: Report, folder: Path, name: str, notes: int, turns: int) -> None:
    """Train once with nothing compiled, and then both ways in turn."""
    command(folder, f"{name}-warm", ADAPTERS[name], False)  # tokenizes, and tries kernels
    begun = command(folder, f"{name}-begun", ADAPTERS[name], True)
    waiting = waited(folder, notes)
    found: dict[bool, list[Measured]] = {False: [], True: []}
    for turn in range(turns):
        for compiled in (False, True):
            found[compiled].append(command(folder, f"{name}-{turn}-{compiled}", ADAPTERS[name], compiled))

    def median(compiled: bool, what: str) -> float:
        return round(statistics.median(getattr(each, what) for each in found[compiled]), 2)

    told = found[True][0].compiled
    layer = told["eager_ms"] / told["compiled_ms"]
    figures = {
        "first_run": {"first_step_s": round(begun.first, 2), "steps_s": round(begun.training, 2)},
        "waited_for_code_s": round(waiting, 1),
        "compiling_s": told["seconds"],
        "layer_ms": [round(told["eager_ms"], 1), round(told["compiled_ms"], 1)],
        "changing_over_s": max(each.compiled["seconds_in_the_run"] for each in found[True]),
        "loss": [found[compiled][0].loss for compiled in (False, True)],
    }
    for what, attribute in (("first_step_s", "first"), ("last_step_s", "last"), ("steps_s", "training")):
        figures[what] = [median(compiled, attribute) for compiled in (False, True)]
    report.figures[name] = figures
    report.check(f"{name}: times as fast a layer, compiled", round(layer, 2), at_least=1)
    gained = round(figures["last_step_s"][0] - figures["last_step_s"][1], 2)
    report.check(f"{name}: seconds sooner at step {STEPS}, code on the disk", gained, at_least=0)
    late = round(begun.first - figures["first_step_s"][0], 2)
    report.check(f"{name}: seconds later at the first step of the first run", late, at_most=10)
    off = abs(figures["loss"][1] / figures["loss"][0] - 1)
    report.check(f"{name}: the loss differs by, relative", float(f"{off:.2g}"), at_most=1e-3)


if __name__ == "__main__":
    main(measure, __doc__ or "")
