"""Pairs, a bench, and runs that several tests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gym_core import execute, load_recipe
from gym_data.examples import Pair
from gym_testkit.bench import Bench, Finished

SIZES = ((5, 4, 7), (3, 6, 6), (9, 2, 1), (0, 5, 8), (4, 11, 3))


def pairs(sizes: Sequence[tuple[int, int, int]] = SIZES, seed: int = 0) -> list[Pair]:
    """Return pairs whose prompt, chosen and rejected answer have these lengths; without a prompt the first token is read."""
    random = np.random.default_rng(seed)
    made = []
    for number, (prompt, chosen, rejected) in enumerate(sizes):
        tokens = random.integers(3, 60, prompt + chosen + rejected).astype(np.int32)
        trained = np.arange(len(tokens)) >= prompt
        trained[[0, prompt + chosen] if not prompt else []] = False
        made.append(Pair(f"row {number}", tokens, trained, prompt, chosen))
    return made


def rows(count: int = 24) -> list[dict[str, Any]]:
    """Return rows of pairs whose answers differ in length."""
    words = ["red", "green", "blue", "white", "black", "pink", "grey", "teal"]
    return [
        {
            "prompt": f"say {words[n % 8]}",
            "chosen": words[n % 8] * (1 + n % 3),
            "rejected": words[(n + 3) % 8] * (1 + n % 2),
        }
        for n in range(count)
    ]


def run(
    root: Path, model: Path, algorithm: Mapping[str, Any], name: str, again: bool = False, **sections: Any
) -> Finished:
    """Train a few steps, or go on with that, and return what was written down."""
    bench = Bench(root)
    train = {"batch_size": 4, "learning_rate": 0.003, "max_steps": 8} | sections.pop("train", {})
    recipe = bench.recipe(algorithm, "preference", **train) | {"model": str(model), "data": str(bench.file(rows()))}
    recipe |= {"output": str(root / name), **sections}
    assert (root / name).exists() == again
    return bench.finished(execute(load_recipe(recipe)))
