"""The 30M model after it has read tinyshakespeare and a part of Wikipedia: what is measured on it is measured on a model.

`GYM_30M` names the folder of a model that was trained so before; without it the model is trained
anew, in 700 steps.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gym_core import execute, load_recipe
from peers.material import DATA, write_model
from peers.shape import SMALL

READ = ("tinyshakespeare", "wiki_demo")
TUNED = "alpaca_en_demo"  #: what it is fine-tuned on; its tokenizer has read that too
STEPS = 700  #: of 8 rows of 256 tokens


def texts() -> dict[str, Any]:
    """Return the `data` section that the model is trained on, a part held out."""
    return {"sources": list(READ), "dataset_dir": str(DATA), "cutoff": 256, "validation": 0.05}


def pretrained(folder: Path) -> Path:
    """Return the folder of the trained model; below `folder` where it has to be trained."""
    if before := os.environ.get("GYM_30M"):
        return Path(before)
    recipe = {
        "model": str(write_model(folder / "random", SMALL, *READ, TUNED)),
        "data": texts(),
        "algorithm": "pretrain",
        "optimizer": {"name": "adamw", "beta2": 0.95, "weight_decay": 0.1},
        "scheduler": "cosine",
        "train": {"max_steps": STEPS, "batch_size": 8, "learning_rate": 1e-3, "warmup": 40, "plot": False},
        "output": str(folder / "run"),
    }
    return execute(load_recipe(recipe)).artifact.path
