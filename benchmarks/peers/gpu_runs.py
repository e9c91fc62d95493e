"""What `gpu.py` measures: what each worker is told of a model, a way to use it and a peer, and the figures of its result."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from peers.generation import Generating
from peers.material import DATA as FOLDER
from peers.material import source, write_model, write_prompts, write_samples
from peers.process import accelerated
from peers.rollouts import GROUP, Rolling
from peers.runs import run
from peers.sizes import FORMS, MINIATURE, RANK, SIZES, Case, Size
from peers.supervised import Tuning

DATA = "alpaca_en_demo"
LONGEST = 240.0  #: seconds that a run may take
Figures = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    length: int = 2048  #: tokens of a packed row
    rows: int = 4  #: of them in a step
    steps: int = 12
    warm: int = 4  #: steps that do not count
    answers: int = 32  #: of GRPO in a step
    prompt: int = 256  #: tokens
    answer: int = 256  #: tokens, most
    rounds: int = 3  #: steps of GRPO, and rounds of decoding; the first does not count
    decoded: int = 64  #: rows that are decoded together


SMALL = Scale(length=128, rows=2, steps=5, warm=1, answers=8, prompt=32, answer=8, rounds=2, decoded=4)


@dataclass(frozen=True)
class Bench:
    """What all runs of a call share."""

    scratch: Path  #: where models and samples lie, also for later calls
    rate: float  #: FLOP/s of matrix products
    scale: Scale = Scale()

    def shape(self, size: str) -> Size:
        """Return a size by its name."""
        return MINIATURE if size == "miniature" else SIZES[size]

    def model(self, size: str) -> Path:
        """Return the folder of a model, written where it is not there."""
        folder, shape = self.scratch / size, self.shape(size).config
        if not folder.exists():
            began, making = time.monotonic(), self.scratch / f"{size}-{os.getpid()}"
            device = "cuda" if accelerated() else "cpu"
            write_model(making, shape["vocab_size"], DATA, shape=shape, half=True, device=device)
            making.rename(folder)
            say(f"a model of {size} is written, in {time.monotonic() - began:.0f} s")
        free_memory()
        return folder

    def run(self, case: Case, peer: str) -> Figures:
        """Return the figures of a run. Raises SystemExit where it fails."""
        worker, _, form = peer.partition(" ")
        spec, figures = WAYS[case.way](self, case, worker)
        return figures(run(worker, replace(spec, **FORMS.get(form, {})), LONGEST))


Way = Callable[[Bench, Case, str], tuple[Any, Callable[[Any], Figures]]]


def tuning(bench: Bench, case: Case, worker: str) -> tuple[Any, Callable[[Any], Figures]]:
    """Return what a worker of supervised training is told, and what makes figures of its result."""
    scale, model = bench.scale, bench.model(case.size)
    samples = bench.scratch / f"{case.size}.jsonl"
    rows = write_samples(samples, model, DATA, scale.length)
    lengths = [len(row["input_ids"]) for row in rows]
    scored = sum(label != -100 for row in rows for label in row["labels"]) / sum(lengths)
    squares = sum(length**2 for length in lengths) / sum(lengths) / 2  # causal: a token sees half of its sample
    flops = bench.shape(case.size).step(case.way, squares, scored)
    # Gym fills a row from samples, of which so many make the tokens that the peers pack into a step.
    count = max(1, round(scale.rows * scale.length / fmean(lengths))) if worker == "gym" else scale.rows
    spec = Tuning(
        model=str(model),
        samples=str(samples),
        data=source(DATA, scale.length),
        output=str(bench.scratch / "run"),
        steps=scale.steps,
        rows=count,
        precision="bf16",
        learning_rate=1e-5,
        length=scale.length,
        adapter=None if case.way == "full" else {"name": "lora", "rank": RANK},
        recompute=case.size == "7B",
        quantized=case.way == "qlora",
        half=case.way != "full",
        kernels=kernels(),
        flash=find_spec("flash_attn") is not None,
        folder=str(FOLDER),
        dataset=DATA,
    )

    def figures(made: Any) -> Figures:
        speed, typical = made.speed(scale.warm), fmean(made.tokens) / median(made.seconds[scale.warm :])
        return {
            "tokens_per_second": round(speed),
            "tokens_per_median_second": round(typical),
            "model_flop_utilisation": round(speed * flops / bench.rate, 3),
            "peak_gib": round(made.peak_bytes / 2**30, 2),
            "step_seconds": [round(each, 3) for each in made.seconds],
            "loss": [round(loss, 3) for loss in made.losses[:: max(1, scale.steps // 4)]],
            "grad_norm": [round(norm, 3) for norm in made.norms[:: max(1, scale.steps // 4)]],
        }

    return spec, figures


def rolling(bench: Bench, case: Case, worker: str) -> tuple[Any, Callable[[Any], Figures]]:
    """Return the same of reinforcement learning."""
    scale = bench.scale
    spec = Rolling(
        **_asked(bench, case, scale.rounds * scale.answers // GROUP),
        steps=scale.rounds,
        rows=scale.answers,
        learning_rate=1e-6,
    )

    def figures(made: Any) -> Figures:
        count = fmean(made.tokens[1:])
        whole = scale.prompt + count
        flops = bench.shape(case.size).step("grpo", whole / 2, count / whole)
        tokens = scale.answers * whole / fmean(made.updates[1:])
        return {
            "answers_per_second": round(made.speed(1), 2),
            "answer_tokens": round(count, 1),
            "update_tokens_per_second": round(tokens),
            "update_flop_utilisation": round(tokens * flops / bench.rate, 3),
            "peak_gib": round(made.peak_bytes / 2**30, 2),
        }

    return spec, figures


def decoding(bench: Bench, case: Case, worker: str) -> tuple[Any, Callable[[Any], Figures]]:
    """Return the same of decoding."""
    scale = bench.scale
    spec = Generating(**_asked(bench, case, scale.decoded), steps=scale.rounds, rows=scale.decoded)
    return spec, lambda made: {
        "tokens_per_second": round(made.speed(1)),
        "milliseconds_per_step": round(1000 * min(made.seconds) / scale.answer, 2),
        "peak_gib": round(made.peak_bytes / 2**30, 2),
    }


def _asked(bench: Bench, case: Case, prompts: int) -> dict[str, Any]:
    scale, model = bench.scale, bench.model(case.size)
    file = bench.scratch / f"{case.size}-prompts-{prompts}.jsonl"
    if not file.exists():
        write_prompts(file, model, DATA, prompts, scale.prompt)
    output = str(bench.scratch / "run")
    return {"model": str(model), "prompts": str(file), "output": output, "precision": "bf16", "longest": scale.answer}


WAYS: dict[str, Way] = {"full": tuning, "lora": tuning, "qlora": tuning, "grpo": rolling, "decode": decoding}


def kernels() -> list[str]:
    """Return the libraries that Gym is to try: all whose packages are installed, best known first."""
    found = {
        "flash_attention_3": "flash_attn_interface",
        "flash_attention_2": "flash_attn",
        "liger": "liger_kernel",
        "triton": "triton",
    }
    return ["varlen_attention", *(name for name, package in found.items() if find_spec(package))]


def free_memory() -> None:
    """Give back what this process holds on a GPU: the workers need it."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def say(line: str) -> None:
    """Print a line at once, beside the object that is printed at the end."""
    print(line, file=sys.stderr, flush=True)
