"""DPO with LoRA beside TRL's DPOTrainer, on the same pairs in the same steps: pairs/s, peak memory, and one curve.

Both train one 30M-parameter model on dpo_en_demo with fused AdamW, in passes of as many pairs as are fastest for each.
TRL runs in the precision that a probe finds faster on this machine, fp32 where bf16 has no arithmetic of its own, and without
activation checkpointing (its default recomputes, which costs time); Gym runs in the same one.
"""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import report
from peers.material import source, words, write_model, write_pairs
from peers.preferred import Preferred, Preferring
from peers.runs import fastest
from peers.shape import ATTENTION, PARAMETERS, SMALL

from gym_torch.kernels import precision_probe

DATA, CUTOFF, WARM = "dpo_en_demo", 1024, 1
PARTS = ("prompt", "chosen", "rejected")
PAIRS = (4, 1)  #: that a pass may have: more rows side by side, or less padding
TIMES = {"bf16": 4, "fp32": 3}  #: target: times TRL's pairs/s, by precision
MOST = {"bf16": 0.9, "fp32": 1.0}  #: target: of TRL's peak


def measure(out: report.Report, quick: bool) -> None:
    """Compare speed, memory and curves."""
    _compare(out, quick)


def system_prompt(out: report.Report, quick: bool) -> None:
    """Compare on pairs that all begin with one system prompt: see `gym_torch.shared_prefixes`."""
    _compare(out, quick, system=words(DATA, 150))


def _compare(out: report.Report, quick: bool, **more: Any) -> None:
    steps, pairs = (3, 4) if quick else (8, 16)
    trial = precision_probe.trial(512)
    out.figures["precision"] = str(trial)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        model = write_model(scratch / "model", SMALL, DATA)
        count = write_pairs(scratch / "pairs.jsonl", model, DATA, CUTOFF, **more)
        assert count >= steps * pairs, f"{count} pairs are too few"
        out.figures["tokens_a_pair"] = tokens(scratch / "pairs.jsonl", steps * pairs)
        spec = Preferring(
            model=str(model),
            output=str(scratch / "run"),
            steps=steps,
            rows=pairs,
            data=source(DATA, CUTOFF, **more),
            pairs=str(scratch / "pairs.jsonl"),
            precision=trial.precision,
        )
        tried = [replace(spec, accumulate=pairs // each) for each in PAIRS]
        chosen: dict[str, Preferring] = {}
        found: dict[str, Preferred] = {}
        for who in ("gym", "trl"):
            chosen[who], found[who] = fastest(who, tried, WARM)
        speeds = {who: one.speed(WARM) for who, one in found.items()}
        flops = fmean(_flops(scratch / "pairs.jsonl", WARM * pairs, steps * pairs))
    peaks = {who: one.peak_bytes - one.base_bytes for who, one in found.items()}
    out.figures.update(
        {
            "pairs_in_a_pass": {who: pairs // settings.accumulate for who, settings in chosen.items()},
            "model_flop_utilisation": round(speeds["gym"] * flops / report.matmul_rate(trial.precision), 3),
            "pairs_per_second": {who: round(speed, 3) for who, speed in speeds.items()},
            "peak_mib": {who: round(peak / 2**20) for who, peak in peaks.items()},
            "first_step_seconds": {who: round(one.seconds[0], 2) for who, one in found.items()},
            "loss": {who: [round(loss, 5) for loss in one.losses] for who, one in found.items()},
            "gradient_norm": {who: [round(norm, 4) for norm in one.norms] for who, one in found.items()},
        }
    )
    out.check("Gym / trl, pairs/s", round(speeds["gym"] / speeds["trl"], 2), at_least=TIMES[trial.precision])
    out.check("Gym / trl, peak memory", round(peaks["gym"] / peaks["trl"], 3), at_most=MOST[trial.precision])
    ours, theirs = found["gym"], found["trl"]
    apart = max(abs(a / b - 1) for a, b in zip(ours.losses, theirs.losses, strict=True))
    out.check(
        "loss, largest relative difference from TRL",
        round(apart, 6),
        at_most=1e-3 if trial.precision == "fp32" else 1e-2,
    )
    apart = max(abs(math.log(a / b)) for a, b in zip(ours.norms, theirs.norms, strict=True))
    out.check("gradient norm, same", round(apart, 5), at_most=2e-2)


def tokens(pairs: Path, count: int) -> dict[str, int]:
    """Return the mean number of tokens of each part of the first pairs; TRL computes the prompt with each answer."""
    return dict(zip(PARTS, (round(fmean(part)) for part in zip(*_lengths(pairs, 0, count), strict=True)), strict=True))


def _lengths(pairs: Path, first: int, end: int) -> list[list[int]]:
    rows = [json.loads(line) for line in pairs.read_text(encoding="utf-8").splitlines()[first:end]]
    return [[len(row[f"{part}_ids"]) for part in PARTS] for row in rows]


def _flops(pairs: Path, first: int, end: int) -> list[float]:
    """Return the FLOPs that each pair needs.

    The layers, and the head where an answer stands, forward for policy and reference, and back to the inputs of frozen weights;
    causal attention likewise, but back to queries as well as to keys and values.
    """
    found = []
    for prompt, *answers in _lengths(pairs, first, end):
        attended = prompt**2 / 2 + sum(each * (prompt + each / 2) for each in answers)
        head = 512 * SMALL * sum(answers)
        found.append(6 * (PARAMETERS * (prompt + sum(answers)) + head) + 8 * ATTENTION * attended)
    return found


if __name__ == "__main__":
    report.main(measure, __doc__ or "", system_prompt=system_prompt)
