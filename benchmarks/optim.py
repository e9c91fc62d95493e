"""Optimizers beside each other on tinyshakespeare: bytes of state, time of a step, and the loss they reach.

Every one gets the same model, batches, warm-up, cosine decay and grid of learning rates; the rate is chosen by short runs,
the loss is that of held-out text after a long one. The model is the 30M-parameter Qwen3 of the other benchmarks, read byte
by byte; with `--quick` it is one of two layers, and only those optimizers run that the checks are about. Time is that of a
whole step, as a ratio to AdamW's.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from math import cos, inf, pi
from pathlib import Path
from statistics import median
from typing import Any

import report
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from gym_core import Optimizer
from gym_optim import InBackward
from gym_optim import config as optim
from gym_optim.schedule_free import to_use
from gym_torch.parameters import groups_of

DATA = Path(os.environ.get("GYM_DATA", Path(__file__).parents[2] / "shared" / "data")) / "tinyshakespeare.txt"
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
STEPS, TUNING, ROWS, LENGTH = 300, 75, 8, 64


@dataclass(frozen=True)
class Run:
    """What came of training with one optimizer."""

    loss: float
    seconds: float  #: median of a step
    state: int  #: bytes measured
    declared: int


def measure(out: report.Report, quick: bool) -> None:
    """Train with each at its best rate."""
    shape = small_shape() if quick else large_shape()
    chosen = components(shape.hidden_size // 4)
    checked = ("adamw", "galore", "apollo", "adam_mini", "muon")
    chosen = {name: chosen[name] for name in checked} if quick else chosen
    text = torch.frombuffer(bytearray(DATA.read_bytes()), dtype=torch.uint8).long()
    losses = {}
    for name, optimizer in chosen.items():
        short = {rate: train(shape, text, optimizer, rate, TUNING).loss for rate in RATES}
        best = min(short, key=short.__getitem__)
        found = train(shape, text, optimizer, best, STEPS)
        losses[name] = found.loss
        out.figures[name] = {
            "state_mib": round(found.state / 2**20, 2),
            "step_ms": round(1000 * found.seconds, 1),
            "loss": round(found.loss, 4),
            "learning_rate": best,
        }
        apart = abs(found.state / found.declared - 1) if found.declared else float(found.state)
        out.check(f"{name}: state, measured / declared - 1", round(apart, 4), at_most=0.01)
    base = out.figures["adamw"]
    for figures in out.figures.values():
        figures["state / adamw"] = round(figures["state_mib"] / base["state_mib"], 3)
        figures["step / adamw"] = round(figures["step_ms"] / base["step_ms"], 2)
    for name in checked[1:]:
        bound = 1.0 if name == "muon" else 1.03
        out.check(f"{name}: loss / AdamW's", round(losses[name] / losses["adamw"], 4), at_most=bound)


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
        "badam": optim.BAdam(),
        "adalomo": optim.AdaLomo(),
        "lomo": optim.LOMO(),
    }


def train(shape: Qwen3Config, text: Tensor, config: Optimizer, peak: float, steps: int) -> Run:
    """Train from scratch and evaluate on the last twentieth of the text; a run that breaks down has an infinite loss."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape)
    groups = groups_of(model)
    shapes = [{**group, "params": [(name, tuple(each.shape)) for name, each in group["params"]]} for group in groups]
    optimizer: Any = config.build(parameters=groups, learning_rate=peak)
    cut, warmup, seconds = text.numel() * 19 // 20, max(1, steps // 20), []
    for step in range(steps):
        share = max(0.0, (step - warmup) / (steps - warmup))
        factor = (step + 1) / warmup if step < warmup else (1 + cos(pi * share)) / 2
        for group in optimizer.param_groups:
            group["lr"] = peak * factor
        began = time.perf_counter()
        tokens = batch(text[:cut], step)
        model(input_ids=tokens, labels=tokens).loss.backward()
        if not isinstance(optimizer, InBackward):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    with torch.no_grad(), to_use(optimizer):
        held = [batch(text[cut:], number) for number in range(16)]
        losses = [float(model(input_ids=tokens, labels=tokens).loss) for tokens in held]
    loss = sum(losses) / len(losses)
    tensors = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    state = sum(tensor.nbytes for tensor in tensors if tensor.dim())
    return Run(loss if loss == loss else inf, median(seconds), state, config.declared_bytes(shapes))


def batch(text: Tensor, number: int) -> Tensor:
    """Return rows of bytes from places that follow from the number, [rows, length]."""
    starts = torch.randint(0, text.numel() - LENGTH, (ROWS,), generator=torch.Generator().manual_seed(number))
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


if __name__ == "__main__":
    report.main(measure, __doc__ or "")
