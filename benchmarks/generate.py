"""Tokens/s of Gym's generator and of transformers' `generate`: 64 prompts x 4 samples whose lengths are mixed.

Each sample has a limit of its own, drawn from a skewed distribution, in place of a stop token that no one foresees. Both
sides produce every token up to it with two threads, and nothing past it counts: in fp32, and the larger of two models, where this
machine is faster with it, in bf16. The peer has its prompts sorted
by length and runs in the best of its settings: batch size, and dynamic or static cache, tried on half of the prompts with
all limits cut to a quarter, so that they are as mixed as before. Gym runs before and after the peer, and its mean counts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from peers.random_model import PRECISIONS, precisions, random_model
from report import Report, main
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_torch.generation.generator import Generator

PROMPTS, SAMPLES = 64, 4
LENGTHS = (16, 160)  #: tokens of a prompt, uniform
LIMITS = (16, 256)  #: tokens of a sample: log-normal with median 45, cut to this
SHORTER = 4  #: what limits are divided by where the peer's settings are tried
ROWS = (64, 128)  #: batch sizes that the peer is tried with: fewer rows cost more each; Gym keeps its default, 64
TIES = {
    torch.float32: 1e-4,
    torch.bfloat16: 0.04,
}  #: two tokens whose logits are this close may change places between batch shapes


@dataclass
class Work:
    """What to generate: one entry a row, the samples of a prompt side by side."""

    prompts: list[list[int]]
    limits: list[int]

    def part(self, rows: Sequence[int]) -> Work:
        """Return some of the rows."""
        return Work([self.prompts[row] for row in rows], [self.limits[row] for row in rows])


def draw(count: int, vocabulary: int) -> Work:
    """Draw prompts and limits, the same ones each time."""
    source = random.Random(0)
    prompts = [[source.randrange(vocabulary) for _ in range(source.randint(*LENGTHS))] for _ in range(count)]
    limits = [round(45 * source.lognormvariate(0.0, 0.9)) for _ in range(count * SAMPLES)]
    low, high = LIMITS
    return Work([prompt for prompt in prompts for _ in range(SAMPLES)], [min(high, max(low, n)) for n in limits])


class PastLimit(StoppingCriteria):
    """End each row of the peer at its own limit."""

    def __init__(self, widths: Tensor) -> None:
        """Take the width `[rows]` at which each row is done."""
        self.widths = widths

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """Return which rows are done."""
        return input_ids.shape[1] >= self.widths


def peer(model: PreTrainedModel, work: Work, rows: int, cache: str, sample: bool) -> list[list[int]]:
    """Generate with transformers, in batches of neighbours by prompt length."""
    made: list[list[int]] = [[] for _ in work.prompts]
    # Stable, so that the samples of a prompt stay together.
    order = sorted(range(len(made)), key=lambda row: -len(work.prompts[row]))
    for start in range(0, len(order), rows):
        chosen = order[start : start + rows]
        batch = work.part(chosen)
        width = max(map(len, batch.prompts))
        # Equal prompts are neighbours: `num_return_sequences` repeats rows in the same way before the first pass.
        same = SAMPLES if sample else 1
        padded = [[0] * (width - len(prompt)) + prompt for prompt in batch.prompts[::same]]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch.prompts[::same]]
        settings = GenerationConfig(
            do_sample=sample, top_k=0 if sample else None, num_return_sequences=same, max_new_tokens=max(batch.limits),
            cache_implementation=cache, pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        output = model.generate(
            input_ids=torch.tensor(padded),
            attention_mask=torch.tensor(mask),
            generation_config=settings,
            stopping_criteria=StoppingCriteriaList([PastLimit(width + torch.tensor(batch.limits))]),
        )
        for row, tokens, limit in zip(chosen, output[:, width:].tolist(), batch.limits, strict=True):
            made[row] = tokens[:limit]
    return made


def ours(generator: Generator, work: Work, sample: bool) -> list[list[int]]:
    """Generate with Gym."""
    made = generator.generate(work.prompts, work.limits, temperature=float(sample), stop_ids=())
    return [completion.tokens for completion in made]


def seconds(work: Work, generate: Callable[[Work], list[list[int]]]) -> Tensor:
    """Return the seconds that it takes `[2]`: by the clock, and of the processor, which other programs disturb less."""
    began = time.perf_counter(), time.process_time()
    made = generate(work)
    ended = time.perf_counter(), time.process_time()
    assert [len(tokens) for tokens in made] == work.limits
    return torch.tensor(ended, dtype=torch.float64) - torch.tensor(began, dtype=torch.float64)


@torch.no_grad()
def agree(model: PreTrainedModel, prompt: list[int], left: list[int], right: list[int]) -> bool:
    """Whether two greedy answers are the same, up to the first choice that a plain forward pass calls a tie."""
    for place, pair in enumerate(zip(left, right, strict=True)):
        if pair[0] != pair[1]:
            logits = model(torch.tensor([prompt + left[:place]]), logits_to_keep=1).logits[0, -1]
            return bool((logits[pair[0]] - logits[pair[1]]).abs() < TIES[logits.dtype])
    return True


def models() -> Iterator[tuple[str, PreTrainedModel]]:
    """Yield 30M parameters with random weights, in each precision, and the packaged tiny model."""
    for precision in precisions():
        yield f"30m {precision}", random_model().to(PRECISIONS[precision])
    yield "tiny", AutoModelForCausalLM.from_pretrained(locate("tiny"), dtype=torch.float32).eval()


def measure(report: Report, quick: bool) -> None:
    """Choose the peer's setting on a part, take turns, then compare greedy answers."""
    torch.set_num_threads(2)
    for name, model in models():
        model.generation_config.eos_token_id = None
        generator = Generator(model, Tokenizer(locate("tiny")))
        work = draw(PROMPTS // 4 if quick else PROMPTS, model.config.vocab_size)
        part = work.part(range(len(work.prompts) // 2))
        part = Work(part.prompts, [limit // SHORTER for limit in part.limits])
        tried = {
            (rows, cache): float(seconds(part, partial(peer, model, rows=rows, cache=cache, sample=True))[0])
            for rows in (ROWS[:1] if quick else ROWS)
            for cache in ("dynamic", "static")
        }
        rows, cache = min(tried, key=tried.__getitem__)
        mine = partial(ours, generator, sample=True)
        theirs = partial(peer, model, rows=rows, cache=cache, sample=True)
        before, between, after = (seconds(work, generate) for generate in (mine, theirs, mine))
        took = {"gym": (before + after) / 2, "peer": between}
        firsts = work.part(range(0, len(work.prompts), 2 * SAMPLES))
        answers = ours(generator, firsts, sample=False), peer(model, firsts, ROWS[0], "dynamic", sample=False)
        pairs = list(zip(firsts.prompts, *answers, strict=True))
        useful, ratio = sum(work.limits), (took["peer"] / took["gym"]).tolist()
        report.figures[name] = {
            "useful_tokens": useful,
            "peer_setting": f"{rows} rows, {cache} cache",
            "peer_tried_seconds": {f"{rows} {cache}": round(value, 1) for (rows, cache), value in tried.items()},
            "tokens_per_second": {who: round(useful / float(each[0]), 1) for who, each in took.items()},
            "tokens_per_cpu_second": {who: round(useful / float(each[1]), 1) for who, each in took.items()},
            "ratio": round(ratio[0], 2),
            "ratio_of_cpu_seconds": round(ratio[1], 2),
            "greedy_equal": sum(left == right for _, left, right in pairs) / len(pairs),
        }
        agreeing = sum(agree(model, *pair) for pair in pairs) / len(pairs)
        report.check(f"{name}: tokens/s against transformers", round(ratio[0], 2), at_least=2 if quick else 5)
        report.check(f"{name}: greedy answers equal up to ties", agreeing, at_least=1)


if __name__ == "__main__":
    main(measure, __doc__ or "")
