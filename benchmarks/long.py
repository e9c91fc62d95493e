"""Memory and seconds of a step over one long sample, beside TRL's SFTTrainer with gradient checkpointing and its fused loss.

A model of 30M parameters, fused AdamW, one sample of running text a step, every token of it predicted, in rows as long as the
sample. Peaks are the most memory that a process had resident, less what it held before the model was loaded; `slope` is
how much of it each further thousand tokens take. All else that runs changes the seconds and not the memory.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import report
from peers.material import DATA, write_model
from peers.runs import run, together
from peers.shape import ATTENTION, PARAMETERS, SMALL
from peers.supervised import Tuned, Tuning

from gym_core import load_recipe
from gym_torch.kernels import precision_probe

TEXT, KILO = "tinyshakespeare", 1024
POLICIES = ("tiled", "offload")  #: of `train.gradient_checkpointing`
MOST = 0.5  #: of TRL's peak
LORA = {"name": "lora", "rank": 8}  #: trains little, so that nearly all memory is that of the row


def measure(out: report.Report, quick: bool) -> None:
    """Compare at 8k and 32k tokens; quick: at 2k and 8k, for at 32k attention takes minutes."""
    trial = precision_probe.trial(512)
    precisions = [trial.precision] if quick else sorted({"fp32", trial.precision})
    rates = {kind: report.matmul_rate(kind) for kind in precisions}
    out.figures |= {"precision": str(trial), "matmul_gflops": {kind: round(rates[kind] / 1e9, 1) for kind in rates}}
    for precision in precisions:
        peaks = {kilo: _compare(out, kilo, precision, rates[precision]) for kilo in ((2, 8) if quick else (8, 32))}
        (short, few), (long, many) = peaks.items()
        slopes = {name: round((many[name] - few[name]) / (long - short) / 2**20, 1) for name in many}
        out.figures[f"{precision}: MiB for each further 1,024 tokens"] = slopes
        for policy in POLICIES:
            name = f"{precision}, {long}k tokens, {policy}: Gym / TRL, peak"
            out.check(name, round(many[policy] / many["trl"], 3), at_most=MOST)


def at_32k(out: report.Report, _quick: bool) -> None:
    """Compare at 32k tokens in the faster precision alone, which takes a quarter of an hour."""
    precision = precision_probe.trial(512).precision
    peaks = _compare(out, 32, precision, report.matmul_rate(precision))
    for policy in POLICIES:
        out.check(f"{precision}, 32k tokens, {policy}: Gym / TRL, peak", round(peaks[policy] / peaks["trl"], 3), MOST)


def longest(out: report.Report, _quick: bool) -> None:
    """Run a step of Gym alone over 128k tokens, which takes an hour or so: attention is 16 times that of 32k."""
    precision = precision_probe.trial(512).precision
    _compare(out, 128, precision, report.matmul_rate(precision), others=())


def context_parallel(out: report.Report, quick: bool) -> None:
    """Train LoRA over one sample in one process, and in two that share its tokens; quick: at 2k and 8k tokens."""
    lengths, precision = (2, 8) if quick else (8, 32), precision_probe.trial(512).precision
    peaks = {kilo: _shared(out, kilo, precision) for kilo in lengths}
    (short, few), (long, many) = peaks.items()
    slopes = {name: (many[name] - few[name]) / (long - short) for name in many}
    out.figures["MiB for each further 1,024 tokens"] = {name: round(each / 2**20, 1) for name, each in slopes.items()}
    for name in ("first of two", "second of two"):
        out.check(f"{long}k tokens: {name} / one process, peak", round(many[name] / many["one"], 3), at_most=0.75)
        out.check(f"further tokens: {name} / one process", round(slopes[name] / slopes["one"], 3), at_most=0.6)


def _shared(out: report.Report, kilo: int, precision: str) -> dict[str, int]:
    """Run one step in one process and in two; return the peaks in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        spec = replace(_prepared(Path(folder), kilo * KILO, precision), recompute=True, adapter=LORA)
        one, two = run("gym", spec), together("gym", replace(spec, sharing=2), 2)
    found: dict[str, Tuned] = dict(zip(("one", "first of two", "second of two"), (one, *two), strict=True))
    peaks = {name: result.peak_bytes - result.base_bytes for name, result in found.items()}
    out.figures[f"{precision}, {kilo}k tokens, shared"] = {
        "peak_mib": {name: round(peak / 2**20) for name, peak in peaks.items()},
        "seconds": {name: round(result.seconds[0], 1) for name, result in found.items()},
        "loss": {name: result.losses[0] for name, result in found.items()},
        "gradient_norm": {name: result.norms[0] for name, result in found.items()},
    }
    print(out.figures[f"{precision}, {kilo}k tokens, shared"], flush=True, file=sys.stderr)
    bound, last = 1e-5 if precision == "fp32" else 1e-2, two[-1]
    for name, own, other in (("loss", one.losses, last.losses), ("gradient norm", one.norms, last.norms)):
        apart = round(abs(own[0] / other[0] - 1), 7)
        out.check(f"{precision}, {kilo}k tokens: {name}, two processes and one apart", apart, at_most=bound)
    return peaks


def _compare(
    out: report.Report, kilo: int, precision: str, rate: float, others: tuple[str, ...] = ("trl",)
) -> dict[str, int]:
    """Run one step of each; return the peaks in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        spec = _prepared(Path(folder), kilo * KILO, precision)
        found: dict[str, Tuned] = {policy: run("gym", replace(spec, recompute=policy)) for policy in POLICIES}
        found |= {peer: run(peer, replace(spec, recompute=True, length=kilo * KILO)) for peer in others}
    peaks = {name: result.peak_bytes - result.base_bytes for name, result in found.items()}
    out.figures[f"{precision}, {kilo}k tokens"] = {
        "peak_mib": {name: round(peak / 2**20) for name, peak in peaks.items()},
        "seconds": {name: round(result.seconds[0], 1) for name, result in found.items()},
        "model_flop_utilisation": {
            name: round(_flops(kilo * KILO) / rate / result.seconds[0], 3) for name, result in found.items()
        },
        "loss": {name: result.losses[0] for name, result in found.items()},
        "gradient_norm": {name: result.norms[0] for name, result in found.items()},
    }
    print(out.figures[f"{precision}, {kilo}k tokens"], flush=True, file=sys.stderr)
    bound = 1e-3 if precision == "fp32" else 1e-2
    for name, result in list(found.items())[1:]:
        first = found[POLICIES[0]]
        apart = abs(result.losses[0] / first.losses[0] - 1), abs(math.log(result.norms[0] / first.norms[0]))
        out.check(f"{precision}, {kilo}k tokens: loss, {name} and tiled apart", round(apart[0], 6), at_most=bound)
        out.check(
            f"{precision}, {kilo}k tokens: gradient norm, {name} and tiled", round(apart[1], 5), at_most=20 * bound
        )
    return peaks


def _prepared(folder: Path, tokens: int, precision: str) -> Tuning:
    """Write a model with as many positions, and its first sample of running text."""
    model = write_model(folder / "model", SMALL, TEXT)
    config = model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": tokens}))
    text = (DATA / f"{TEXT}.txt").read_text(encoding="utf-8")
    (folder / "text.jsonl").write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")
    data: dict[str, Any] = {"sources": [str(folder / "text.jsonl")], "cutoff": tokens}
    recipe = load_recipe({"model": str(model), "algorithm": "pretrain", "data": data, "output": "unused"})
    assert recipe.data is not None and recipe.algorithm is not None
    first = recipe.data.build(tokenizer=model, rows=recipe.algorithm.rows, seed=0).train[0].tokens.tolist()
    assert len(first) == tokens
    (folder / "samples.jsonl").write_text(json.dumps({"input_ids": first, "labels": first}) + "\n")
    return Tuning(
        model=str(model),
        samples=str(folder / "samples.jsonl"),
        data=data,
        algorithm="pretrain",
        output=str(folder / "run"),
        steps=1,
        rows=1,
        precision=precision,
    )


def _flops(tokens: int) -> float:
    """Return the FLOPs of a step without what is computed again: matrices and causal attention."""
    return 6 * (PARAMETERS + 512 * SMALL + ATTENTION * tokens / 2) * tokens


if __name__ == "__main__":
    report.main(measure, __doc__ or "", at_32k=at_32k, longest=longest, context_parallel=context_parallel)
