"""What the tests of the engine share: data in memory, a next-token objective, runs in this process or a child."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from gym_core import Artifact, Callback, Recipe, Run, Train
from gym_core.record import RunRecord
from gym_core.sections import Resolved
from gym_data.kinds import Data
from gym_optim.config import AdamW, Linear
from gym_optim.kinds import Optimizer
from gym_torch import TorchAlgorithm, Transformers
from gym_torch.batch import Batch
from gym_torch.metrics import Largest, Mean, Metrics, Ratio
from gym_torch.objective import Objective, Scores
from gym_torch.observer import Observer, Progress

VOCABULARY = 256


@dataclass(frozen=True)
class Sample:
    id: str
    tokens: np.ndarray
    trained: np.ndarray


class Samples(Sequence[Sample]):
    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self.lengths = np.array([len(sample.tokens) for sample in samples])

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]


def samples(number: int, seed: int = 0, even: bool = False) -> Samples:
    """Draw counting sequences of 4 to 20 tokens, of which all but the first two are trained."""
    draw = np.random.default_rng(seed)
    made = []
    for index in range(number):
        length = 12 if even else int(draw.integers(4, 21))
        tokens = (draw.integers(VOCABULARY) + np.arange(length) * draw.integers(1, 4)) % VOCABULARY
        made.append(Sample(f"row {index}", tokens.astype(np.int32), np.arange(length) >= 2))
    return Samples(made)


@dataclass
class Prepared:
    train: Samples
    validation: Samples | None
    fingerprint: str = "0" * 16
    report: dict[str, Any] = field(default_factory=dict)


class Memory(Data):
    """Counting sequences."""

    rows: int = 24
    """Samples to train on."""
    held_out: int = 0
    """Samples to evaluate on."""
    seed: int = 0
    """Seed of the samples."""

    def build(self, **context: Any) -> Prepared:
        validation = samples(self.held_out, seed=self.seed + 1) if self.held_out else None
        return Prepared(samples(self.rows, self.seed), validation, f"memory-{self.seed}")


class NextToken(Objective[Batch]):
    def loss(self, policy: Scores[Batch], batch: Batch) -> tuple[Tensor, Metrics]:
        log_probs = policy(batch)
        likely = log_probs.detach().exp()
        return -log_probs.sum(), {
            "likelihood": Mean(likely.sum()),
            "by_sample": Ratio(likely.sum(), likely.new_tensor(len(batch.segments))),
            "surprise": Largest((-log_probs.detach()).max() if len(likely) else likely.new_zeros(())),
            "of_nothing": Ratio(*likely.new_zeros(2)),
        }


class Counting(TorchAlgorithm):
    """Next-token prediction."""

    objective: ClassVar[str] = "gym_torch_bench:NextToken"


QUICK: dict[str, Any] = {
    "precision": "fp32",
    "plot": False,
    "log_every": 1,
    "max_steps": 10,
    "learning_rate": 0.01,
    "batch_size": 4,
    "save_every": 1000,
}


def make_run(
    model: Path,
    output: Path,
    data: Data | None = None,
    algorithm: TorchAlgorithm | None = None,
    sections: Mapping[str, Any] | None = None,
    **train: Any,
) -> Run:
    """Return a run, or the same run again where `output` exists."""
    output.mkdir(parents=True, exist_ok=True)
    record = RunRecord(output / "run.json")
    settings = QUICK | {"warmup": 2.0} | train
    parts: dict[str, Any] = {
        "algorithm": algorithm or Counting(),
        "model": Transformers(path=str(model)),
        "data": data or Memory(),
        "optimizer": AdamW(weight_decay=0.1),
        "scheduler": Linear(),
        "train": Train(**{key: value for key, value in settings.items() if value is not None}),
        **(sections or {}),
    }
    empty = dict.fromkeys(("adapter", "quantization", "distributed"))
    lists: dict[str, Any] = {"callbacks": (), "export": (), "hooks": (), "output": str(output)}
    resolved = (Resolved(("algorithm",), "algorithms", "counting", "tests", "0", "", "", "name"),)
    recipe = Recipe(**empty | lists | parts | {"resolved": resolved})
    resuming = bool(record.read())
    record.update(status="running")
    return Run(recipe, output, record, resuming)


def train(run: Run) -> Artifact:
    """Carry the run out, without the lock and the hooks of the kernel."""
    return run.recipe.algorithm.build(run=run, model=run.recipe.model.build(run=run)).train()


def metrics(output: Path) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl` without what depends on the clock."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines]


def train_in_child(model: Path, output: Path, held_out: int, settings: dict[str, Any], sync: float = 0.0) -> None:
    """Carry out one run; for a process of its own. Whatever goes to the disk takes so many seconds more."""
    torch.set_num_threads(1)
    at_once = os.fsync

    def later(descriptor: int) -> None:
        time.sleep(sync)
        at_once(descriptor)

    os.fsync = later
    train(make_run(model, output, Memory(held_out=held_out), **settings))


class Event(Callback):
    """Something that happens after a step."""

    step: int
    """When."""
    signal: int | None = None
    """Signal that the process sends itself, as a terminal that is closed twice; without it, the run crashes."""

    def build(self, **context: Any) -> Observer:
        return _Event(self)


class Crash(Exception):
    """Stands for whatever ends a process without warning."""


class _Event(Observer):
    def __init__(self, config: Event) -> None:
        self.config = config

    def stepped(self, progress: Progress) -> None:
        if progress.step == self.config.step:
            if self.config.signal is None:
                raise Crash
            for _ in range(1 + (self.config.signal == signal.SIGHUP)):
                os.kill(os.getpid(), self.config.signal)


class SGD(Optimizer):
    """Plain gradient descent: its weights show the gradient, unlike those of Adam."""

    def elementwise(self) -> bool:
        return True

    def keeps_gradients(self) -> bool:
        return True

    def updates_in_backward(self) -> bool:
        return False

    def build(self, **context: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(context["parameters"], lr=context["learning_rate"])


def weights(output: Path) -> dict[str, Tensor]:
    """Return what a finished run made."""
    return load_file(output / "model" / "model.safetensors")


def state(output: Path, step: int) -> tuple[dict[str, Tensor], Any]:
    """Return the optimizer in a checkpoint."""
    path = output / "checkpoints" / f"step-{step:08d}"
    return load_file(path / "optimizer.safetensors"), json.loads((path / "state.json").read_text())["optimizer"]


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Return whether two sets of tensors are the same, bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def furthest(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """Return the largest difference between two sets of tensors."""
    return max(float((left[name] - right[name]).abs().max()) for name in left)
