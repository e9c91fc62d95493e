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
from peers.runs import run
from peers.shape import SHAPE, SMALL
from peers.supervised import Tuned, Tuning

from gym_core import load_recipe
from gym_torch.model import precision_probe

TEXT, KILO = "tinyshakespeare", 1024
POLICIES = ("tiled", "offload")  #: of `train.gradient_checkpointing`
PARAMETERS = 8 * (512 * (512 + 2 * 256) + 512 * 512 + 3 * 512 * 1536) + 512 * SMALL  #: in matrices
MOST = 0.5  #: of TRL's peak


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
    heads = SHAPE["num_attention_heads"] * SHAPE["head_dim"]
    attention = SHAPE["num_hidden_layers"] * 2 * heads * tokens / 2
    return 6 * (PARAMETERS + attention) * tokens


if __name__ == "__main__":
    report.main(measure, __doc__ or "", at_32k=at_32k, longest=longest)
