"""Optimizers beside each other: bytes of state, time of a step, and the loss that a 30M model and a small one reach.

State and time are those of the 30M-parameter Qwen3 of the other benchmarks; time is a whole step, as a ratio to AdamW's. The
loss is that of held-out tinyshakespeare, read byte by byte, after 300 steps from scratch. Every optimizer gets the same
batches, warm-up, cosine decay and rates: first all of a coarse grid, of which half survive each round of twice the steps, then
the whole run at a few rates around the survivor, and on to where both neighbours of the best are worse. A model of two layers
takes every optimizer, and the mean of three seeds; the 30M model those that the checks are about, once. `--quick` takes those
alone, and no loss of the 30M model. One optimizer is tuned on each core.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import cos, inf, pi
from pathlib import Path
from statistics import fmean, median
from typing import Any

import report
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config
from workers import workers

from gym_optim import config as optim
from gym_optim.kinds import Optimizer
from gym_torch.model.parameter_groups import groups_of

DATA = Path(os.environ.get("GYM_DATA", Path(__file__).parents[2] / "shared" / "data")) / "tinyshakespeare.txt"
STEPS, TUNING, ROWS, LENGTH = 300, 20, 4, 64
TIMED = 4  #: steps of the large model; the first few of some only look
STRIDE = 10**0.25  #: between two rates of whole runs
CHECKED = ("adamw", "muon", "galore", "apollo", "adam_mini")


@dataclass(frozen=True)
class Run:
    """What came of training with one optimizer."""

    loss: float
    seconds: float  #: median of a step
    state: int  #: bytes measured
    declared: int


@dataclass(frozen=True)
class Search:
    """A model, and the runs that find the learning rate of an optimizer."""

    shape: Qwen3Config
    rates: tuple[float, ...]  #: for short runs
    around: tuple[float, ...]  #: times the survivor, which shorter runs find a little high; in steps of STRIDE
    seeds: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Of projections: a quarter of the width."""
        return int(self.shape.hidden_size) // 4


def measure(out: report.Report, quick: bool) -> None:
    """Take state and time alone on the machine, then losses with an optimizer on each core."""
    text = read()
    train(LARGE.shape, text, optim.AdamW(), 1e-4, TIMED, rows=2)  # what is first pays for cold memory
    for name, optimizer in chosen(LARGE, quick).items():
        found = train(LARGE.shape, text, optimizer, 1e-4, TIMED, rows=2)
        out.figures[name] = {"state_mib": round(found.state / 2**20, 2), "step_ms": round(1000 * found.seconds, 1)}
        apart = abs(found.state / found.declared - 1) if found.declared else float(found.state)
        out.check(f"{name}: state, measured / declared - 1", round(apart, 4), at_most=0.01)
    for figures in out.figures.values():
        for name, key in (("state", "state_mib"), ("step", "step_ms")):
            figures[f"{name} / adamw"] = round(figures[key] / out.figures["adamw"][key], 3)
    print(out.figures, file=sys.stderr, flush=True)  # the rest takes an hour
    with workers() as pool:
        small, large = chosen(SMALL, quick), {} if quick else chosen(LARGE, True)
        found_small = pool.map(partial(tuned, SMALL, text), small.values())
        found_large = pool.map(partial(tuned, LARGE, text), large.values())
        compare(out, "", dict(zip(small, found_small, strict=True)))
        if large:
            compare(out, ", 30M", dict(zip(large, found_large, strict=True)))


def compare(out: report.Report, where: str, found: dict[str, tuple[float, float]]) -> None:
    """Hold the losses of a model, given with their rates, to AdamW's."""
    for name, (rate, loss) in found.items():
        out.figures[name] |= {f"loss{where}": round(loss, 4), f"learning_rate{where}": float(f"{rate:.2g}")}
    for name in CHECKED[1:]:
        bound = 1.0 if name == "muon" else 1.03
        out.check(f"{name}{where}: loss / AdamW's", round(found[name][1] / found["adamw"][1], 4), at_most=bound)


def chosen(search: Search, checked: bool) -> dict[str, Optimizer]:
    """Return the optimizers for a model: all, or those that the checks are about."""
    found = components(search.rank)
    return {name: found[name] for name in CHECKED} if checked else found


def tuned(search: Search, text: Tensor, optimizer: Optimizer) -> tuple[float, float]:
    """Return the best rate, and the loss that whole runs at it end with."""
    rates, steps = list(search.rates), TUNING
    while len(rates) > 1:
        losses = {rate: train(search.shape, text, optimizer, rate, steps).loss for rate in rates}
        rates, steps = sorted(rates, key=losses.__getitem__)[: len(rates) // 2], 2 * steps

    def ended(rate: float) -> float:
        return fmean(train(search.shape, text, optimizer, rate, STEPS, seed).loss for seed in search.seeds)

    whole = {rate: ended(rate) for rate in (rates[0] * by for by in search.around)}
    while (best := min(whole, key=whole.__getitem__)) in (min(whole), max(whole)):
        further = best * STRIDE if best == max(whole) else best / STRIDE
        whole[further] = ended(further)
    print(f"{type(optimizer).__name__}, {search.shape.hidden_size} wide: {whole}", file=sys.stderr, flush=True)
    return best, whole[best]


def components(rank: int) -> dict[str, Optimizer]:
    """Return what is compared: defaults, and for projections a quarter of the width as rank."""
    return {
        "adamw": optim.AdamW(),
        "adamw_8bit": optim.AdamW8bit(),
        "adam_mini": optim.AdamMini(),
        "muon": optim.Muon(weight_decay=0.0),
        "lion": optim.Lion(),
        "sgd": optim.SGD(momentum=0.9),
        "adafactor": optim.Adafactor(),
        "soap": optim.SOAP(weight_decay=0.0),
        "schedule_free_adamw": optim.ScheduleFreeAdamW(),
        "galore": optim.GaLore(rank=rank, scale=1.0),
        "q_galore": optim.QGaLore(rank=rank, scale=1.0),
        "fira": optim.Fira(rank=rank, scale=1.0),
        "apollo": optim.APOLLO(rank=rank),
        "apollo_mini": optim.APOLLOMini(),
        "lisa": optim.LISA(),
        "badam": optim.BAdam(
            include_embedding=True
        ),  # which are random at first, and the largest block of the 30M model
        "adalomo": optim.AdaLomo(),
        "lomo": optim.LOMO(),
    }


def train(
    shape: Qwen3Config, text: Tensor, config: Optimizer, peak: float, steps: int, seed: int = 0, rows: int = ROWS
) -> Run:
    """Train from scratch and evaluate on the last twentieth of the text."""
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape)
    cut = text.numel() * 19 // 20

    def loss(text: Tensor, number: int) -> Tensor:
        tokens = batch(text, number, rows)
        found: Tensor = model(input_ids=tokens, labels=tokens).loss
        return found

    held = [partial(loss, text[cut:], number) for number in range(2 * rows)]
    return fit(groups_of(model), config, peak, steps, partial(loss, text[:cut]), held)


def fit(
    groups: list[dict[str, Any]],
    config: Optimizer,
    peak: float,
    steps: int,
    loss: Callable[[int], Tensor],
    held: Sequence[Callable[[], Tensor]],
    stepped: Callable[[int], None] = lambda step: None,
) -> Run:
    """Take steps on the losses of their numbers; return the mean of those held out, infinite where a run breaks down.

    `stepped` is told of each step, counted from 1, while its gradients are there.
    """
    shapes = [{**group, "params": [(name, tuple(each.shape)) for name, each in group["params"]]} for group in groups]
    every = [weight for group in groups for _, weight in group["params"]]
    optimizer: Any = config.build(parameters=groups, learning_rate=peak)
    warmup, seconds = max(1, steps // 20), []
    scales = [group["lr"] / peak for group in optimizer.param_groups]
    for step in range(steps):
        share = max(0.0, (step - warmup) / max(1, steps - warmup))
        factor = (step + 1) / warmup if step < warmup else (1 + cos(pi * share)) / 2
        for group, scale in zip(optimizer.param_groups, scales, strict=True):
            group["lr"] = peak * scale * factor
        began = time.perf_counter()
        loss(step).backward()
        if not config.updates_in_backward():
            torch.nn.utils.clip_grad_norm_(every, 1.0)
        optimizer.step()
        stepped(step + 1)
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    with torch.no_grad(), config.evaluation_weights(optimizer):
        mean = sum(float(each()) for each in held) / len(held)
    tensors = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    state = sum(tensor.nbytes for tensor in tensors if tensor.dim())
    return Run(mean if mean == mean else inf, median(seconds), state, config.declared_bytes(shapes))


def read() -> Tensor:
    """Return tinyshakespeare as bytes."""
    return torch.frombuffer(bytearray(DATA.read_bytes()), dtype=torch.uint8).long()


def batch(text: Tensor, number: int, rows: int) -> Tensor:
    """Return rows of bytes from places that follow from the number, [rows, length]."""
    starts = torch.randint(0, text.numel() - LENGTH, (rows,), generator=torch.Generator().manual_seed(number))
    return torch.stack([text[start : start + LENGTH] for start in starts.tolist()])


def large_shape() -> Qwen3Config:
    """Return the 30M-parameter model of the other benchmarks."""
    return Qwen3Config(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=True,
    )


def small_shape() -> Qwen3Config:
    """Return a model of two layers over bytes."""
    return Qwen3Config(
        vocab_size=256,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
    )


LARGE = Search(large_shape(), tuple(1e-4 * 10 ** (n / 2) for n in range(1, 6)), around=(1 / STRIDE, 1.0), seeds=(0,))
SMALL = Search(
    small_shape(), tuple(1e-4 * 10 ** (n / 2) for n in range(7)), around=(STRIDE**-2, 1 / STRIDE, 1.0), seeds=(0, 1, 2)
)

if __name__ == "__main__":
    report.main(measure, __doc__ or "")
