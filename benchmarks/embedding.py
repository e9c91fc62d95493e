"""What the tiny model learns to find: python benchmarks/embedding.py [--quick].

Runs the recipe of `recipes/embedding` with changes, in fp32, and says how well held-out questions find their answers among all
held-out sentences, before and after. `--quick`: the recipe as it is alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from report import Report, main

from gym_core import execute, load_recipe

FOLDER = Path(__file__).parents[1] / "recipes/embedding"
METRICS = ("recall@1", "mrr@10", "ndcg@10")
CASES: dict[str, dict[str, Any]] = {
    "10 epochs": {},
    "3 epochs": {"train": {"epochs": 3}},
    "3 epochs, mean pooling": {"train": {"epochs": 3}, "algorithm": {"pooling": "mean"}},
    "3 epochs, LoRA": {"train": {"epochs": 3, "learning_rate": 1e-2}, "adapter": {"name": "lora", "rank": 16}},
}


def measure(report: Report, quick: bool) -> None:
    """Fill the report."""
    for number, (name, changes) in enumerate(CASES.items()):
        if quick and number:
            return
        first, *_, last = evaluations(changes)
        if not number:
            report.figures["before training"] = first
            report.check("recall@1 before training", first["recall@1"], at_most=0.1)
            report.check("recall@1 after 10 epochs", last["recall@1"], at_least=0.95)
        report.figures[name] = last


def evaluations(changes: dict[str, Any]) -> list[dict[str, float]]:
    """Return the metrics of all evaluations of a run, the first of them before training."""
    recipe = yaml.safe_load((FOLDER / "embedding.yaml").read_text(encoding="utf-8"))
    data = {
        key: str(FOLDER / Path(value).name) if isinstance(value, str) else value
        for key, value in recipe["data"].items()
    }
    recipe["train"] |= {"plot": False, "log_every": 1000, "precision": "fp32", **changes.get("train", {})}
    recipe["algorithm"] = {"name": recipe["algorithm"], **changes.get("algorithm", {})}
    recipe |= {key: changes[key] for key in changes.keys() & {"adapter"}}
    with TemporaryDirectory() as folder:
        output = execute(load_recipe(recipe | {"data": data, "output": f"{folder}/run"})).output
        lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [found for line in lines if "eval_loss" in (found := json.loads(line))]
    return [{name: round(each[f"eval_{name}"], 4) for name in METRICS} for each in records]


if __name__ == "__main__":
    main(measure, __doc__)
