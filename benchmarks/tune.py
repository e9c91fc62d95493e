"""Whether TPE with pruning finds what random search finds in less training: python benchmarks/tune.py [--quick].

Both search learning rate, optimizer and rank of a LoRA run of the tiny model, whose own learning rate is a hundred times too
small, with as many trials; random search ends no trial early. Steps are those of optimizers over all trials, until the best value
that random search finds is reached. With the same seed both draw the same first trials. `--quick`: one seed of three.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from report import Report, main

from gym_tune.study import read_study
from gym_tune.tuning import tuned

TRIALS = 10
RECIPE = {
    "model": "tiny",
    "data": {"sources": [{"name": "tiny-tasks", "count": 400}], "validation": 40},
    "algorithm": "sft",
    "adapter": {"name": "lora", "rank": 8},
    "train": {
        "max_steps": 40,
        "batch_size": 8,
        "eval_every": 5,
        "learning_rate": 1e-5,
        "precision": "fp32",
        "plot": False,
    },
}
SPACE = {
    "train.learning_rate": {"low": 1e-6, "high": 1e-1, "log": True},
    "adapter.rank": {"low": 2, "high": 32, "log": True},
    "optimizer": ["adamw", "lion", "muon"],
}
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "random": {"sampler": "random", "pruner": "none"},
    "tpe": {"sampler": {"name": "tpe", "n_startup_trials": 5}, "pruner": {"name": "median", "n_startup_trials": 3}},
}


def measure(report: Report, quick: bool) -> None:
    """Fill the report."""
    with TemporaryDirectory() as folder:
        found = [compared(Path(folder), seed) for seed in range(1 if quick else 3)]
    report.figures["tune"] = found
    spent = {name: fmean(each[name]["until_reached"] for each in found) for name in STRATEGIES}
    report.figures["steps until the best value of random search"] = spent
    reached = fmean(each["tpe"]["reached"] for each in found)
    report.check("share of studies in which TPE with pruning reaches what random search found", reached, at_least=1.0)
    report.check("its steps until then, over those of random search", spent["tpe"] / spent["random"], at_most=1.0)
    gain = fmean(each["random"]["own"] - each["random"]["best"] for each in found)
    report.check("loss that the search takes off the recipe's own values", gain, at_least=0.01)


def compared(folder: Path, seed: int) -> dict[str, Any]:
    """Return what both strategies found with one seed, and the steps that each took to come as far as random search."""
    outcomes = {name: searched(folder / f"{name}-{seed}", seed, parts) for name, parts in STRATEGIES.items()}
    target = outcomes["random"]["best"]
    for outcome in outcomes.values():
        steps, values = outcome.pop("steps_of_trials"), outcome.pop("values")
        first = next((number for number, value in enumerate(values) if value <= target), None)
        outcome["reached"] = first is not None
        outcome["until_reached"] = sum(steps if first is None else steps[: first + 1])
    return {"seed": seed, **outcomes}


def searched(folder: Path, seed: int, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a study in a new folder; return its best value, and steps and value of each trial, infinite unless it ended."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(json.dumps(RECIPE))
    study = {
        "recipe": "recipe.yaml",
        "space": SPACE,
        "n_trials": TRIALS,
        "seed": seed,
        **parts,
        "output": str(folder / "study"),
    }
    (folder / "tune.yaml").write_text(json.dumps(study))
    outcome = tuned(read_study(folder / "tune.yaml"))
    rows = list(csv.DictReader((folder / "study/trials.csv").read_text().splitlines()))
    return {
        "best": outcome["best"]["value"],
        "own": outcome["own"]["value"],
        "trials": outcome["trials"],
        "steps": outcome["steps"],
        "seconds": outcome["seconds"],
        "steps_of_trials": [int(row["steps"]) for row in rows],
        "values": [float(row["value"]) if row["state"] == "complete" else float("inf") for row in rows],
    }


if __name__ == "__main__":
    main(measure, __doc__)
