"""Tokens/s of a few rows in flight, where their answers quote their prompts and where they repeat nothing.

The 30M model with random weights, one, four or sixteen rows at a time. What a model would say is not the question here but what
it costs: in the first case each token is made to be the one that the prompt has next, in the second tokens are drawn from the
model, which repeats nothing. Both with guesses and without, in turns; the best of each counts, for the others were disturbed.
"""

from __future__ import annotations

import random
import time
from itertools import product

import torch
from peers.random_model import precisions, random_model
from peers.shape import SMALL
from report import Report, main
from torch import Tensor
from transformers import PreTrainedModel

from gym_torch.generation.cache_support import CacheSupport
from gym_torch.generation.cast_once import cast_once
from gym_torch.generation.decoding import Decoding
from gym_torch.generation.drafts import MOST
from gym_torch.generation.row import Row
from gym_torch.generation.sampling import GREEDY, SamplingOptions
from gym_torch.kernels.fused_modules import fuse

PROMPT, ANSWER = 96, 64  #: tokens
TARGETS = {1: 2.0, 4: 1.5, 16: 1.1}  #: times as fast where answers quote, by rows in flight


@torch.no_grad()
def measure(report: Report, quick: bool) -> None:
    """Take turns, in fp32 and, where this machine is faster with it, in bf16."""
    torch.set_num_threads(2)
    model = random_model()
    fuse(model)
    for precision in precisions():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"), cast_once(model):
            for rows, quoting in product(TARGETS, (True, False)):
                speeds: dict[int, list[float]] = {0: [], MOST: []}
                for number in range(3 if quick else 9):
                    for most, found in speeds.items():
                        found.append(_speed(model, most, quoting, number, rows))
                what = "quoting" if quoting else "repeating nothing"
                name = f"{precision}, rows in flight: {rows}, {what}"
                best = {most: max(found[1:]) for most, found in speeds.items()}
                report.figures[name] = {f"{most} guesses": round(speed) for most, speed in best.items()}
                times = round(best[MOST] / best[0], 2)
                report.check(f"{name}: times as fast", times, at_least=TARGETS[rows] if quoting else 0.9)


def _speed(model: PreTrainedModel, most: int, quoting: bool, number: int, count: int) -> float:
    rows = [_row(quoting, count * number + each) for each in range(count)]
    batch = Decoding(model, CacheSupport(True, True, ragged=True), PROMPT + ANSWER, guesses=most)
    batch.admit(rows)
    began = time.perf_counter()
    while batch.rows:
        batch.step()
    return count * (ANSWER - 1) / (time.perf_counter() - began)


def _row(quoting: bool, number: int) -> Row:
    drawn = random.Random(number)
    prompt = [drawn.randrange(SMALL) for _ in range(PROMPT)]

    def next_of_prompt(logits: Tensor) -> Tensor:
        place = len(row.completion.tokens)
        return torch.full_like(logits, -torch.inf).index_fill(0, torch.tensor([prompt[place % PROMPT]]), 0.0)

    sampling = GREEDY if quoting else SamplingOptions(1.0, seed=number)
    row = Row(tuple(prompt), ANSWER, sampling=sampling, adjust=next_of_prompt if quoting else None)
    return row


if __name__ == "__main__":
    main(measure, __doc__ or "")
