"""Runs recipes with several seeds each, one run to a processor core, and hands back what a judge finds of every run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from workers import workers

from gym_core import Outcome, execute, load_recipe

SEEDS = (0, 1, 2)
Judge = Callable[[Path, Outcome], Any]  #: of a recipe and what its run left


def learn(judge: Judge, recipe: Path, seed: int) -> dict[str, Any]:
    """Train by a recipe as `gym train` does and return what became of it."""
    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        outcome = execute(load_recipe(recipe, [f"output={folder}/run", f"train.seed={seed}"]))
        seconds = time.perf_counter() - began
        found = {"accuracy": judge(recipe, outcome), "seconds": round(seconds, 1)}
    print(f"{recipe.stem}, seed {seed}: {found}", file=sys.stderr, flush=True)
    return found


def learnt(recipes: list[Path], judge: Judge, quick: bool) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the name of each recipe and its runs, one for each seed; `quick` takes one seed."""
    with workers() as pool:
        runs = {
            recipe.stem: pool.map(partial(learn, judge, recipe), SEEDS[: 1 if quick else None]) for recipe in recipes
        }
        for name, found in runs.items():
            yield name, list(found)
