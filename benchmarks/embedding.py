"""What the tiny model learns to find: `python benchmarks/embedding.py`.

Runs the recipe of `recipes/embedding` in the folder `runs` with changes, and prints how well held-out questions find their
answers among all held-out sentences, before and after.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from gym_core import execute, load_recipe

RECIPE = Path("recipes/embedding/embedding.yaml")
METRICS = ("recall@1", "mrr@10", "ndcg@10")
CASES: dict[str, dict[str, Any]] = {
    "10 epochs": {},
    "3 epochs": {"train": {"epochs": 3}},
    "3 epochs, mean pooling": {"train": {"epochs": 3}, "algorithm": {"pooling": "mean"}},
    "3 epochs, LoRA": {"train": {"epochs": 3, "learning_rate": 1e-2}, "adapter": {"name": "lora", "rank": 16}},
}


def measured(number: int, changes: dict[str, Any]) -> list[dict[str, float]]:
    """Return the evaluations of a run, the first of them before training."""
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    recipe["train"] |= {"plot": False, "log_every": 1000, **changes.get("train", {})}
    recipe["algorithm"] = {"name": recipe["algorithm"], **changes.get("algorithm", {})}
    recipe |= {"output": f"runs/embedding-{number}", **{key: changes[key] for key in changes.keys() & {"adapter"}}}
    output = execute(load_recipe(recipe)).output
    lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [found for line in lines if "eval_loss" in (found := json.loads(line))]


def main() -> None:
    """Print the table."""
    rows = {name: measured(number, changes) for number, (name, changes) in enumerate(CASES.items())}
    before = {"before training": next(iter(rows.values()))[0]}
    print(f"| | {' | '.join(METRICS)} |\n|---|{'---|' * len(METRICS)}")
    for name, found in (before | {name: every[-1] for name, every in rows.items()}).items():
        print(f"| {name} | {' | '.join(format(found['eval_' + metric], '.2f') for metric in METRICS)} |")


if __name__ == "__main__":
    main()
