"""Small runs that the tests of `gym reproduce` and `gym capsule` record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gym_core import Recipe, load_recipe

STEPS = 4


def rows(file: Path, number: int = 24, plus: int = 1) -> Path:
    pairs = [(str(at), str(at + plus)) for at in range(number)]
    messages = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in pairs]
    file.write_text("".join(json.dumps({"messages": each}) + "\n" for each in messages))
    return file


def recipe(output: Path, **sections: Any) -> Recipe:
    train = {"max_steps": STEPS, "batch_size": 2, "log_every": 1, "save_every": 2, "precision": "fp32", "plot": False}
    plain = {"model": "tiny", "data": str(output.parent / "rows.jsonl"), "algorithm": "sft", "output": str(output)}
    return load_recipe(
        {**plain, "adapter": {"name": "lora", "rank": 2}, **sections, "train": train | sections.get("train", {})}
    )
