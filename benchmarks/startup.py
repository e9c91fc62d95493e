"""How long `gym --help` and `gym --plugins list` take with everything and 250 more distributions installed, and how long
`gym train` takes to its first step.

Whole processes, started in turn with a bare interpreter; the aim is 150 ms and less than 15 times `python -c pass`, and
5 s from the start of `gym train` on the tiny model to the line that reports its first step.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import Report, main

DISTRIBUTIONS = 250
HEAVY = ("torch", "numpy", "pydantic", "transformers", "pluggy", "stevedore")


def synthesise(folder: Path) -> None:
    """Write the metadata of many distributions, every tenth of them a Gym plugin that cannot be imported."""
    for number in range(DISTRIBUTIONS):
        info = folder / f"synthetic_{number}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: synthetic-{number}\nVersion: 1.0\nSummary: Synthetic\n\n"
        )
        group = "gym.algorithms" if number % 10 == 0 else "console_scripts"
        (info / "entry_points.txt").write_text(f"[{group}]\nsynthetic-{number} = synthetic_{number}:Nothing\n")


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """Time one whole process."""
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def first_step(folder: Path, number: int, adapter: str) -> float:
    """Return the seconds from the start of a run on the tiny model to the line that reports its first step."""
    text = {"messages": [{"role": "user", "content": "7 + 2"}, {"role": "assistant", "content": "9"}]}
    (folder / "rows.jsonl").write_text(f"{json.dumps(text)}\n" * 64)
    recipe = {"model": "tiny", "data": str(folder / "rows.jsonl"), "algorithm": "sft", "adapter": adapter,
              "train": {"max_steps": 1, "batch_size": 8}, "output": str(folder / f"run{number}")}  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    command = [str(Path(sys.executable).with_name("gym")), "train", str(folder / "recipe.yaml")]
    # It may keep bytecode, as every installation does.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        for line in process.stderr:
            if line.startswith("step 1/1"):
                taken = time.perf_counter() - start
        assert process.wait() == 0
    return taken


def measure(report: Report, quick: bool) -> None:
    """Alternate the three commands so that a drifting machine drifts for all of them."""
    gym = str(Path(sys.executable).with_name("gym"))
    commands = {
        "bare": [sys.executable, "-c", "pass"],
        "help": [gym, "--help"],
        "list": [gym, "--plugins", "list"],
    }
    with tempfile.TemporaryDirectory() as folder:
        synthesise(Path(folder))
        environment = {**os.environ, "PYTHONPATH": folder}
        times: dict[str, list[float]] = {name: [] for name in commands}
        for round_number in range((5 if quick else 20) + 1):
            for name, command in commands.items():
                taken = seconds(command, environment)
                if round_number:  # the first round warms the disk cache
                    times[name].append(taken)
        probe = (
            "import sys; from gym_core.cli import run; run(['--plugins', 'list']); "
            f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
        )
        loaded = subprocess.run(
            [sys.executable, "-c", probe], env=environment, capture_output=True, text=True, check=True
        )
    with tempfile.TemporaryDirectory() as folder:
        steps = [
            (adapter, first_step(Path(folder), at, adapter))
            for at, adapter in enumerate(("full", "lora") * (3 if quick else 6))
        ]
    median = {name: statistics.median(values) for name, values in times.items()}
    report.figures = {f"{name}_ms": round(1000 * value, 1) for name, value in median.items()}
    for adapter in ("full", "lora"):  # the first of each warms the disk cache and tokenizes
        taken = statistics.median([seconds for own, seconds in steps if own == adapter][1:])
        report.figures[f"first step, {adapter}, s"] = round(taken, 2)
        report.check(f"gym train on the tiny model, {adapter}: seconds to the first step", round(taken, 2), at_most=5)
    report.figures["heavy_modules_loaded"] = loaded.stderr.strip()
    for name in ("help", "list"):
        report.figures[f"{name}_ratio"] = round(median[name] / median["bare"], 2)
        report.check(f"gym {name}: median ms", report.figures[f"{name}_ms"], at_most=150)
        report.check(f"gym {name}: times a bare interpreter", report.figures[f"{name}_ratio"], at_most=15)
    report.check("heavy modules loaded", float(loaded.stderr.strip() != "[]"), at_most=0)


if __name__ == "__main__":
    main(measure, __doc__ or "")
