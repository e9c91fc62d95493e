"""A training step with kernels and without them: seconds, loss, gradient norm.

Those for what stands between matrix products, and in fp32 those for the products of linear layers. The 30M model on a packed row
of 16 samples, forward, backward and the gradient norm, in turns in one process. Beside it is the trial of each piece of work, as
a run makes it.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import report
import torch
from peers.material import write_model, write_samples
from peers.shape import SMALL
from transformers import AutoModelForCausalLM

from gym_torch.attention.segment_attention import NAME
from gym_torch.batch import Batch, Piece, packed
from gym_torch.kernels import fused_modules, linear_products
from gym_torch.policy import Policy

DATA = "alpaca_en_demo"
BETWEEN, PRODUCTS = "between products", "linear products"
CHOICES = {BETWEEN: fused_modules.CHOICES, PRODUCTS: linear_products.CHOICES}
SWITCHED = ("bf16", BETWEEN), ("fp32", BETWEEN), ("fp32", PRODUCTS)


def measure(out: report.Report, quick: bool) -> None:
    """Compare in both precisions."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["GYM_CACHE"] = str(folder / "cache")
        path = write_model(folder / "model", SMALL, DATA)
        batch = _batch(write_samples(folder / "samples.jsonl", path, DATA, 1024)[:16])
        for precision, kernels in SWITCHED:
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=NAME)
            _compare(out, Policy(model.train(), precision), batch, precision, kernels, 2 if quick else 5)
        trials = [json.loads(file.read_text()) for file in sorted((folder / "cache" / "probe").iterdir())]
    out.figures["trials"] = [found for found in trials if "kernel" in found]


def _batch(rows: list[dict[str, Any]]) -> Batch:
    pieces = (Piece("", np.array(row["input_ids"], dtype=np.int32), np.array(row["labels"]) != -100) for row in rows)
    return packed(list(pieces), ())


def _compare(out: report.Report, policy: Policy[Any], batch: Batch, precision: str, kernels: str, times: int) -> None:
    found: dict[str, Any] = {"tokens": batch.tokens.numel()}
    _step(policy, batch)  # the trials
    for _ in range(times):
        for name, always in (("torch", False), ("kernel", None)):
            CHOICES[kernels].always = always
            seconds, loss, norm = _step(policy, batch)
            best = min(seconds, found.get(name, {}).get("seconds", seconds))
            found[name] = {"seconds": round(best, 3), "loss": loss, "gradient_norm": norm}
    said = f"{precision}, {kernels}"
    out.figures[said] = found
    mine, theirs = found["kernel"], found["torch"]
    out.check(f"{said}: times as fast", round(theirs["seconds"] / mine["seconds"], 2), at_least=1)
    bounds = {"loss": 1e-4, "gradient_norm": 1e-3} if precision == "bf16" else {"loss": 1e-6, "gradient_norm": 1e-5}
    for name, bound in bounds.items():
        out.check(f"{said}: {name} is off by, relative", float(f"{abs(mine[name] / theirs[name] - 1):.1e}"), bound)


def _step(policy: Policy[Any], batch: Batch) -> tuple[float, float, float]:
    began = time.perf_counter()
    loss = -policy(batch).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    policy.zero_grad()
    return time.perf_counter() - began, loss.item(), norm.item()


if __name__ == "__main__":
    report.main(measure, __doc__ or "")
