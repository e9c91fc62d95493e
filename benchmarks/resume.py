"""What checkpoints cost, and whether a killed run ends where an undisturbed one does.

For fine-tuning and pre-training, all weights and LoRA, on the tiny model: the time to write, verify and rotate a
checkpoint against the time of a step, and a drill (3 kills with --quick, else 20) whose result must be identical.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from report import Report, main

from gym_core import Run, load_recipe
from gym_core.hooks import manager_for
from gym_core.record import RunRecord
from gym_torch.checkpoints.saving import Results
from gym_torch.loop.job import Job

DATA = {
    "sft": {"sources": [{"name": "tiny-tasks", "count": 300}], "validation": 16, "cutoff": 512},
    "pretrain": {"sources": [{"name": "tiny-corpus", "documents": 300}], "split": "documents", "cutoff": 256},
}
ADAPTERS: dict[str, dict[str, Any]] = {"full": {}, "lora": {"adapter": {"name": "lora", "rank": 8, "dropout": 0.1}}}
TRAIN = {"batch_size": 8, "learning_rate": 1e-3, "precision": "fp32", "plot": False}
EVERY = 500  #: steps between two checkpoints unless a recipe says otherwise


def recipes() -> dict[str, dict[str, Any]]:
    """Return the recipes by name."""
    return {
        f"{algorithm} {how}": {"model": "tiny", "data": data, "algorithm": algorithm, "train": TRAIN, **adapter}
        for algorithm, data in DATA.items()
        for how, adapter in ADAPTERS.items()
    }


def cost(recipe: dict[str, Any], output: Path, saves: int) -> dict[str, float]:
    """Train with a checkpoint every second step; return seconds of a step and of a checkpoint, and bytes of one."""
    train = TRAIN | {"max_steps": 2 * saves, "save_every": 2}
    loaded = load_recipe(recipe | {"train": train})
    output.mkdir()
    run = Run(loaded, output, RunRecord(output / "run.json"))
    hook = manager_for(loaded.hooks).hook
    trainer = hook.build_trainer(run=run, model=hook.load_model(run=run))
    times = []

    class Timed(Results):
        """Writes checkpoints, and takes the time of each."""

        def checkpoint(self, job: Job) -> None:
            began = time.perf_counter()
            super().checkpoint(job)
            times.append(time.perf_counter() - began)

    with patch("gym_torch.assembly.Results", Timed):
        trainer.train()
    trained = run.record.read()["training"]
    newest = max((output / "checkpoints").glob("step-*"))
    step = trained["seconds"] / trained["steps"]
    return {
        "step_ms": round(1000 * step, 1),
        "save_ms": round(1000 * statistics.median(times), 1),
        "save_steps": round(statistics.median(times) / step, 2),
        "overhead_percent": round(100 * statistics.median(times) / (EVERY * step), 3),
        "megabytes": round(sum(file.stat().st_size for file in newest.rglob("*") if file.is_file()) / 1e6, 2),
    }


def drill(recipe: dict[str, Any], folder: Path, kills: int) -> dict[str, Any]:
    """Run `gym drill` as a user would; return its report."""
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    steps = "30" if kills > 3 else "12"
    command = [sys.executable, "-m", "gym_core.cli", "drill", str(file), "--kills", str(kills), "--steps", steps]
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(report: Report, quick: bool) -> None:
    """Fill the report."""
    kills = 3 if quick else 20
    for name, recipe in recipes().items():
        with tempfile.TemporaryDirectory() as folder:
            figures = cost(recipe, Path(folder) / "cost", saves=4 if quick else 20)
            found = drill(recipe, Path(folder), kills)
        phases = ("kills", "signals", "phases", "runs", "undisturbed_seconds", "seconds", "difference", "problems")
        report.figures[name] = figures | {key: found[key] for key in phases if key in found}
        report.check(f"{name}: differences after {kills} kills", float(found.get("verdict") != "identical"), at_most=0)
        report.check(f"{name}: kills", found.get("kills", 0), at_least=kills)
        report.check(
            f"{name}: % of the time for a checkpoint every {EVERY} steps", figures["overhead_percent"], at_most=1
        )


if __name__ == "__main__":
    main(measure, __doc__ or "")
