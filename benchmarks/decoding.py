"""Milliseconds of a decoding step by the number of rows in flight: by the kernels of the engine, and by torch.

The 30M model with random weights, in fp32 and, where this machine is faster with it, under autocast in bf16; prompts of 96 tokens
that are all different, each row drawn from the model. Both sides in turns, without guesses at what a row says next, so that a
step is a token for each row. Then whole answers as a round of reinforcement learning asks for them: three prompts of 512 tokens,
eight answers of 64 tokens each, of which both sides keep a prompt once. The least time of each side counts, for the others were
disturbed.
"""

from __future__ import annotations

import random
import time
from statistics import median

import torch
from peers.random_model import precisions, random_model
from peers.shape import SMALL
from report import Report, main
from transformers import PreTrainedModel

from gym_torch.attention import cached_attention
from gym_torch.generation.cache_support import CacheSupport
from gym_torch.generation.cast_once import cast_once
from gym_torch.generation.decoding import Decoding
from gym_torch.generation.generator import Generator
from gym_torch.generation.row import Row
from gym_torch.generation.sampling import SamplingOptions
from gym_torch.kernels import few_row_products
from gym_torch.kernels.fused_modules import fuse
from gym_torch.model.layout_support import layout_for

PROMPT, WARM = 96, 3  #: tokens, and steps before those that count
SIDES = {"torch": False, "kernels": None}  #: what is asked of the choices of kernels
LONG, ANSWER, GROUP, GROUPS = 512, 64, 8, 3  #: tokens of a prompt and of an answer, answers to a prompt, and prompts
#: By precision, times as fast, by rows, and in a round of answers.
TARGETS = {
    "fp32": ({1: 1.0, 4: 1.0, 16: 1.4, 64: 1.0, 256: 1.0}, 1.2),
    "bf16": ({1: 1.3, 4: 1.3, 16: 1.4, 64: 1.4, 256: 1.4}, 1.1),
}


@torch.no_grad()
def measure(report: Report, quick: bool) -> None:
    """Take turns, some steps at a time."""
    torch.set_num_threads(2)
    model = random_model()
    fuse(model)
    layout_for(model)
    for precision in precisions():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"), cast_once(model):
            _measure(report, quick, model, precision)


def _measure(report: Report, quick: bool, model: PreTrainedModel, precision: str) -> None:
    by_rows, target_of_round = TARGETS[precision]
    for rows, target in by_rows.items():
        batches = {side: _batch(model, side, rows) for side in SIDES}
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        for _ in range(4 if quick else 30):
            for side, found in times.items():
                found += _steps(batches[side], side, 2)
        _report(report, f"{precision}, {rows} rows", times, rows, target)
    prompts = [
        [random.Random(number).randrange(SMALL) for _ in range(LONG)] for number in range(GROUPS) for _ in range(GROUP)
    ]
    times = {side: [] for side in SIDES}
    for _ in range(2 if quick else 5):
        for side, found in times.items():
            _ask(side)
            began = time.perf_counter()
            Generator(model, None).generate(prompts, ANSWER, temperature=1.0, stop_ids=())
            found.append(time.perf_counter() - began)
    _report(report, f"{precision}, a round of answers", times, len(prompts) * ANSWER, target_of_round)


def _report(report: Report, name: str, times: dict[str, list[float]], tokens: int, target: float) -> None:
    least = {side: min(found) for side, found in times.items()}
    report.figures[name] = {
        side: {
            "ms": round(1000 * one, 1),
            "median": round(1000 * median(times[side]), 1),
            "tokens/s": round(tokens / one),
        }
        for side, one in least.items()
    }
    report.check(f"{name}: times as fast", round(least["torch"] / least["kernels"], 2), at_least=target)


def _batch(model: PreTrainedModel, side: str, rows: int) -> Decoding:
    drawn = random.Random(0)
    prompts = [tuple(drawn.randrange(SMALL) for _ in range(PROMPT)) for _ in range(rows)]
    _ask(side)
    batch = Decoding(model, CacheSupport(True, True, ragged=True), PROMPT + 1024, guesses=0)
    batch.admit([Row(each, 1024, sampling=SamplingOptions(1.0), stream=at) for at, each in enumerate(prompts)])
    _steps(batch, side, WARM)
    return batch


def _steps(batch: Decoding, side: str, count: int) -> list[float]:
    _ask(side)
    found = []
    for _ in range(count):
        began = time.perf_counter()
        batch.step()
        found.append(time.perf_counter() - began)
    return found


def _ask(side: str) -> None:
    for choices in (cached_attention.CHOICES, few_row_products.CHOICES):
        choices.always = SIDES[side]


if __name__ == "__main__":
    main(measure, __doc__ or "")
