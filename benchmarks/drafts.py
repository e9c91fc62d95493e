"""Tokens/s of a row that is decoded alone, where its answer quotes its prompt and where it repeats nothing.

The 30M model with random weights, one row at a time. What a model would say is not the question here but what it costs: in the
first case each token is made to be the one that the prompt has next, in the second tokens are drawn from the model, which repeats
nothing. Both with guesses and without, in turns.
"""

from __future__ import annotations

import random
import time
from statistics import median

import torch
from peers.shape import SHAPE, SMALL
from report import Report, main
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_torch.generation.cache_support import Way
from gym_torch.generation.decoding import Decoding, Row
from gym_torch.generation.drafts import MOST
from gym_torch.generation.sampling import GREEDY, SamplingOptions
from gym_torch.model.fused_modules import fuse

PROMPT, ANSWER = 96, 64  #: tokens


@torch.no_grad()
def measure(report: Report, quick: bool) -> None:
    """Take turns."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    config = AutoConfig.for_model(**SHAPE, vocab_size=SMALL)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    fuse(model)
    for bf16 in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            for quoting in (True, False):
                speeds: dict[int, list[float]] = {0: [], MOST: []}
                for number in range(3 if quick else 9):
                    for most, found in speeds.items():
                        found.append(_speed(model, most, quoting, number))
                name = f"{'bf16' if bf16 else 'fp32'}, {'quoting' if quoting else 'repeating nothing'}"
                medians = {most: median(found[1:]) for most, found in speeds.items()}
                report.figures[name] = {f"{most} guesses": round(speed) for most, speed in medians.items()}
                report.check(
                    f"{name}: times as fast", round(medians[MOST] / medians[0], 2), at_least=2 if quoting else 0.9
                )


def _speed(model: PreTrainedModel, most: int, quoting: bool, number: int) -> float:
    drawn = random.Random(number)
    prompt = [drawn.randrange(SMALL) for _ in range(PROMPT)]

    def next_of_prompt(logits: Tensor) -> Tensor:
        place = len(row.completion.tokens)
        return torch.full_like(logits, -torch.inf).index_fill(0, torch.tensor([prompt[place % PROMPT]]), 0.0)

    sampling = GREEDY if quoting else SamplingOptions(1.0, seed=number)
    row = Row(tuple(prompt), ANSWER, sampling=sampling, adjust=next_of_prompt if quoting else None)
    batch = Decoding(model, Way(True, True), PROMPT + ANSWER, guesses=most)
    batch.admit([row])
    began = time.perf_counter()
    while batch.rows:
        batch.step()
    return (ANSWER - 1) / (time.perf_counter() - began)


if __name__ == "__main__":
    main(measure, __doc__ or "")
