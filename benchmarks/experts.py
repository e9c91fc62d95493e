"""LoRA of the experts of a mixture beside peft's, which adds the update to all experts before every pass.

A mixture of 8 layers with 16 experts each, two of them for every token, fp32: the same weights, first values, texts, AdamW and
norm of gradients for both, each in a process of its own. Time is the median step; memory the peak of the process less what it
held before the adapter was put in. A step of `short` is 512 tokens, one of `long` 4,096.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import report
import torch
from mixture import alone, shape, tokens
from peers.process import held, peak
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_adapters import ExpertLoRA

RANK = 8
SHAPE = shape(layers=8, experts=16)
BATCHES = {"short": (2, 256), "long": (8, 512)}  #: rows, and tokens of each


def measure(out: report.Report, quick: bool) -> None:
    """Run both on batches of both sizes."""
    for name, batch in list(BATCHES.items())[: 1 if quick else 2]:
        found = {}
        for peer in ("gym", "peft"):
            found[peer] = alone(run, peer, *batch, 3 if quick else 5)
        out.figures[name] = found
        gym, peft = found["gym"], found["peft"]
        for key, bound in (("loss", 1e-4), ("gradient_norm", 1e-3)):
            apart = max(abs(one / other - 1) for one, other in zip(gym[key], peft[key], strict=True))
            out.check(f"{name}: {key}, Gym / peft - 1", float(f"{apart:.1g}"), at_most=bound)
        out.check(f"{name}: Gym / peft, peak", round(gym["peak_mib"] / peft["peak_mib"], 3), at_most=1.0)
        out.check(f"{name}: steps of Gym / peft", round(peft["seconds"] / gym["seconds"], 2), at_least=1.0)


def run(peer: str, rows: int, length: int, steps: int) -> dict[str, Any]:
    """Take steps, and return their losses, norms, median time and peak of memory."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(SHAPE)
    model.requires_grad_(False)
    before = held()
    {"gym": gym, "peft": peft}[peer](model)
    trained = [weight for weight in model.train().parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    losses, norms, seconds = [], [], []
    for step in range(steps):
        batch = tokens(step, rows, length)
        began = time.perf_counter()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained, 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
        losses.append(loss.item())
    used = round((peak() - before) / 2**20)
    return {"loss": losses, "gradient_norm": norms, "seconds": round(median(seconds), 3), "peak_mib": used}


def gym(model: PreTrainedModel) -> None:
    """Put Gym's adapter in."""
    ExpertLoRA(rank=RANK).build(model=model, seed=0)


def peft(model: PreTrainedModel) -> None:
    """Put peft's adapter in, with the same first values."""
    names = [name for name, weight in model.named_parameters() if weight.dim() == 3]
    torch.manual_seed(0)
    get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=[], target_parameters=names))


if __name__ == "__main__":
    report.main(measure, __doc__ or "")
