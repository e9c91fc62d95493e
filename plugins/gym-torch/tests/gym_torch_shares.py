"""Two processes that carry out run after run with every adapter, and write down how each one went."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gym_torch_bench import Memory, make_run, metrics, train

from gym_core import GymError
from gym_core.ranks import Ranks
from gym_testkit.distribution import Brought
from gym_torch import DDP, FSDP, Transformers

SETTINGS: dict[str, Any] = {"max_steps": 2, "batch_size": 2, "accumulate": 2, "learning_rate": 1e-3, "eval_every": 1}
FIGURES = ("loss", "grad_norm", "eval_loss")
STRATEGIES = {"ddp": DDP, "fsdp": FSDP, "shared": partial(DDP, context_parallel_size=2)}


def carried_out(
    name: str, model: Path, output: Path, strategy: str, dtype: str, ranks: Ranks | None = None
) -> dict[str, Any]:
    """Return the figures of a short run with an adapter, or the error that refuses it."""
    sections = {
        "adapter": Brought.named("adapters", name).sample(),
        "distributed": STRATEGIES[strategy](),
        "model": Transformers(path=str(model), dtype=dtype),
    }
    run = make_run(model, output, Memory(held_out=3), sections=sections, precision=dtype, **SETTINGS)
    run.ranks = ranks or run.ranks
    try:
        train(run)
    except GymError as refused:
        problem = refused.problems[0]
        return {
            "why": problem.why,
            "key": problem.key,
            "fix": problem.fix,
            "begun": (output / "metrics.jsonl").exists(),
        }
    if not run.ranks.main:
        return {}
    lines = metrics(output)
    return {figure: [line[figure] for line in lines if figure in line] for figure in FIGURES}


def one_after_another(rank: int, port: int, models: Mapping[str, Path], root: Path, strategy: str, dtype: str) -> None:
    """Be one of two processes."""
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=str(port)
    )
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    ranks = STRATEGIES[strategy]().build(output=root)
    with ranks:
        found = {
            name: carried_out(name, model, root / f"{name}-{rank}", strategy, dtype, ranks)
            for name, model in models.items()
        }
    (root / f"{rank}.json").write_text(json.dumps(found))
