"""What the workers have in common: one run of one peer in a process of its own, which prints one line of JSON.

`python -m peers.MODULE PEER SPEC`, with SPEC the options as JSON, and `benchmarks/` on the path.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


@dataclass(kw_only=True)
class Result:
    """What every run says."""

    seconds: list[float]  #: of each step
    losses: list[float]
    norms: list[float]
    base_bytes: int  #: memory of the process before the model was loaded
    peak_bytes: int


@dataclass(kw_only=True)
class Spec:
    """What every run is told; the same for all peers but for how a step is cut."""

    result: ClassVar[type[Result]] = Result

    model: str
    output: str
    steps: int
    rows: int  #: samples in a step; for rows that a peer packs, rows in a step
    accumulate: int = 1  #: passes in a step
    precision: str = "fp32"
    learning_rate: float = 5e-4
    warm: int = 0  #: first steps that do not count
    patience: float | None = None
    """Seconds of the step after them beyond which a peer stops: another setting is faster."""


def serve(peers: Mapping[str, Callable[[Any], Result]], options: type[Spec]) -> None:
    """Run the peer that the command line names, and print what came of it."""
    spoken = os.dup(1)
    os.dup2(2, 1)  # whatever the peers print goes to the standard error
    found = peers[sys.argv[1]](options(**json.loads(sys.argv[2])))
    os.write(spoken, (json.dumps(asdict(found)) + "\n").encode())


def accelerated() -> bool:
    """Return whether there is a GPU to train on."""
    import torch

    return torch.cuda.is_available()


def held() -> int:
    """Return the bytes that the process holds in memory now; those of the GPU where there is one."""
    if accelerated():
        import torch

        return torch.cuda.memory_allocated()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak() -> int:
    """Return the most bytes that the process has held; those of the GPU where there is one."""
    if accelerated():
        import torch

        return torch.cuda.max_memory_allocated()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def arguments(spec: Spec) -> dict[str, Any]:
    """Return the arguments of the peers' trainers."""
    return {
        "output_dir": spec.output,
        "max_steps": spec.steps,
        "per_device_train_batch_size": spec.rows // spec.accumulate,
        "gradient_accumulation_steps": spec.accumulate,
        "learning_rate": spec.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "bf16": spec.precision == "bf16",
        "use_cpu": not accelerated(),
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }


def schedule(spec: Spec) -> dict[str, Any]:
    """Return the sections of Gym's recipe that say the same."""
    return {
        "scheduler": "constant",
        "train": {
            "max_steps": spec.steps,
            "batch_size": spec.rows // spec.accumulate,
            "accumulate": spec.accumulate,
            "learning_rate": spec.learning_rate,
            "warmup": 0,
            "max_grad_norm": 1.0,
            "precision": spec.precision,
            "shuffle": False,
            "log_every": 1,
            "save_every": 1_000_000,
            "plot": False,
            "overwrite": True,
        },
        "output": spec.output,
    }


def executed(recipe: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Run a recipe of Gym; return what it says of every step, its peak, and the tokens gone by after each step."""
    from gym_core import execute, load_recipe

    outcome = execute(load_recipe(recipe))
    most = peak()
    lines = [json.loads(line) for line in (outcome.output / "metrics.jsonl").read_text().splitlines()]
    tokens = [line["num_tokens"] for line in lines]
    each = [now - before for before, now in zip([0, *tokens], tokens, strict=False)]
    seconds = [count / line["tokens_per_second"] for count, line in zip(each, lines, strict=True)]
    losses, norms = ([line[key] for line in lines] for key in ("loss", "grad_norm"))
    return {"seconds": seconds, "losses": losses, "norms": norms, "peak_bytes": most}, tokens


def clock(spec: Spec) -> Any:
    """Return a callback of the peers' trainers that keeps the seconds and the log of each step, and stops those that are slow."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.seconds: list[float] = []
            self.logs: list[dict[str, float]] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, _arguments: Any, _state: Any, control: Any, **_: Any) -> None:
            self.seconds.append(time.perf_counter() - self.began)
            if spec.patience and len(self.seconds) == spec.warm + 1 and self.seconds[-1] > spec.patience:
                control.should_training_stop = True

        def on_log(self, _args: Any, _state: Any, _control: Any, logs: dict[str, float], **_: Any) -> None:
            if "loss" in logs:
                self.logs.append(logs)

        def found(self) -> dict[str, list[float]]:
            """Return seconds, loss and gradient norm of each step."""
            losses, norms = ([float(log[key]) for log in self.logs] for key in ("loss", "grad_norm"))
            return {"seconds": self.seconds, "losses": losses, "norms": norms}

    return Clock()
