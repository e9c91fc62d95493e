"""Users of the tests: they differ in all they may differ in."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from gym_core import Recipe, load_recipe
from gym_core.execution import execute

STEPS = 16


def rows(seed: int, count: int = 6, pairs: bool = False) -> list[dict[str, Any]]:
    """Return rows of a user, of all lengths."""
    draw = random.Random(seed)
    made: list[dict[str, Any]] = []
    for _ in range(count):
        question = {"role": "user", "content": f"{draw.randrange(1000)}?"}
        good, bad = ("ab"[draw.randrange(2)] * draw.randrange(1, 16) for _ in range(2))
        answers = {"chosen": good + "!", "rejected": bad} if pairs else {}
        made.append(
            {"prompt": question["content"], **answers}
            if pairs
            else {"messages": [question, {"role": "assistant", "content": good}]}
        )
    return made


class Crowd:
    """Users by number, each with a recipe of its own, and what `gym train` makes of it."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model = root, model
        self.results: dict[int, dict[str, Tensor]] = {}

    def recipe(self, user: int, output: Path, **train: Any) -> Recipe:
        """User 2 prefers one answer to another, and users differ in rows, rate, size of steps and seed."""
        file, pairs = self.root / f"{user}.jsonl", user % 4 == 2
        file.write_text("".join(json.dumps(row) + "\n" for row in rows(user, 5 + user, pairs)), encoding="utf-8")
        options = {"batch_size": 1 + user % 3, "accumulate": 1 + user % 2, "max_steps": STEPS + user, "seed": user}
        options |= {"learning_rate": 1e-3 * (1 + user), "log_every": 5, "plot": False, "precision": "fp32"}
        return load_recipe(
            {
                "model": str(self.model),
                "data": {"sources": str(file), "processes": 1},
                "algorithm": "dpo" if pairs else "sft",
                "adapter": {"name": "lora", "rank": 4},
                "train": {**options, **train},
                "output": str(output),
            }
        )

    def alone(self, user: int) -> dict[str, Tensor]:
        """Return the adapter that a run of its own makes."""
        if user not in self.results:
            output = self.root / f"alone-{user}"
            execute(self.recipe(user, output))
            self.results[user] = adapter_in(output)
        return self.results[user]


def adapter_in(output: Path) -> dict[str, Tensor]:
    """Return the weights of the adapter in the directory of a run."""
    return load_file(output / "model" / "adapter_model.safetensors")
