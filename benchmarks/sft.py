"""Fine-tuning speed beside the Trainer of transformers (padded) and TRL's SFTTrainer (packed), on the same samples.

All three train one 30M-parameter model with fused AdamW, the peers in the best of a few settings, found here. Real
tokens are counted, never padding. Gym and Trainer see the same samples in every step, so their losses and gradient
norms must agree step by step; TRL packs in an order of its own.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import report
from peers.material import source, words, write_model, write_samples
from peers.runs import fastest, run
from peers.shape import ATTENTION, PARAMETERS, SMALL
from peers.supervised import Tuned, Tuning

from gym_torch.kernels import precision_probe

ROWS, CUTOFF, WARM = 16, 1024, 1
DATA = ("alpaca_en_demo", "glaive_toolcall_en_demo")
TIMES = {"bf16": (4, 3), "fp32": (2.4, 2.8)}  #: targets, by the precision that is faster: times Trainer, times TRL
USED = {"bf16": 0.33, "fp32": 0.55}  #: of the machine's own rate of matrix products


def measure(out: report.Report, quick: bool) -> None:
    """Compare on each dataset, in fp32 and, where this machine is faster with it, in bf16; quick: in the faster one alone."""
    for data in DATA[: 1 if quick else 2]:
        _compare(out, quick, data)


def system_prompt(out: report.Report, quick: bool) -> None:
    """Compare on samples that all begin with one system prompt: see `gym_torch.shared_prefixes`."""
    _compare(out, quick, DATA[0], system=words(DATA[1], 150))


def fp32(out: report.Report, quick: bool) -> None:
    """Compare in fp32 alone."""
    _compare(out, quick, DATA[0], precisions=["fp32"])


def _compare(out: report.Report, quick: bool, data: str, precisions: list[str] | None = None, **more: Any) -> None:
    trial = precision_probe.trial(512)
    precisions = precisions or ([trial.precision] if quick else sorted({"fp32", trial.precision}))
    out.figures["precision"] = str(trial)
    with tempfile.TemporaryDirectory() as scratch:
        _measured(out, Path(scratch), 3 if quick else 16, precisions, data, more)


def _measured(
    out: report.Report, scratch: Path, steps: int, precisions: list[str], data: str, more: dict[str, Any]
) -> None:
    model = write_model(scratch / "model", SMALL, data)
    rows = write_samples(scratch / "samples.jsonl", model, data, CUTOFF, **more)
    spec = Tuning(
        model=str(model),
        samples=str(scratch / "samples.jsonl"),
        data=source(data, CUTOFF, **more),
        output=str(scratch / "run"),
        steps=steps,
        rows=ROWS,
    )
    timed = rows[WARM * ROWS : steps * ROWS]  # the samples of the steps that count
    lengths = [len(row["input_ids"]) for row in timed]
    per_step = ROWS * fmean(len(row["input_ids"]) for row in rows)
    found: dict[str, Tuned] = {}
    for precision in precisions:
        plain = replace(spec, precision=precision)
        found[f"gym {precision}"] = run("gym", plain)
        padded = [replace(plain, accumulate=count) for count in (4, 1)]
        _, found[f"trainer {precision}"] = fastest("trainer", padded, WARM)
        packed = [replace(plain, length=length, rows=max(1, round(per_step / length))) for length in (512, 1024)]
        _, found[f"trl {precision}"] = fastest("trl", packed, WARM)
    speeds = {name: result.speed(WARM) for name, result in found.items()}
    share = sum(sum(label != -100 for label in row["labels"]) for row in timed) / sum(lengths)
    mine = max((name for name in speeds if name.startswith("gym")), key=speeds.__getitem__)
    rate = report.matmul_rate(mine.split()[1])
    usage = _flops(lengths, share) * speeds[mine] / rate
    out.figures[data] = {
        "tokens_per_second": {name: round(speed) for name, speed in speeds.items()},
        "supervised_tokens_per_second": {name: round(speed * share) for name, speed in speeds.items()},
        "first_step_seconds": {name: round(result.seconds[0], 2) for name, result in found.items()},
        "loss": {
            name: [round(loss, 4) for loss in result.losses[:: max(1, steps // 4)]] for name, result in found.items()
        },
        "gradient_norm": {name: round(fmean(result.norms), 3) for name, result in found.items()},
        "peak_mib": {name: round((result.peak_bytes - result.base_bytes) / 2**20) for name, result in found.items()},
        "model_flop_utilisation": round(usage, 3),
    }
    _check(out, data, found, speeds, mine)
    if not more:  # of what is shared each sample has its own FLOPs here
        out.check(f"{data}: model FLOP utilisation", round(usage, 3), at_least=USED[mine.split()[1]])


def _check(out: report.Report, data: str, found: dict[str, Tuned], speeds: dict[str, float], mine: str) -> None:
    theirs = {
        peer: max(speed for name, speed in speeds.items() if name.startswith(peer)) for peer in ("trainer", "trl ")
    }
    padded, packed = TIMES[mine.split()[1]]
    out.check(f"{data}: Gym / Trainer, real tokens/s", round(speeds[mine] / theirs["trainer"], 2), at_least=padded)
    out.check(f"{data}: Gym / TRL packed, real tokens/s", round(speeds[mine] / theirs["trl "], 2), at_least=packed)
    for precision, bound in (("fp32", 1e-3), ("bf16", 1e-2)):
        if f"gym {precision}" in found:
            ours, other = found[f"gym {precision}"], found[f"trainer {precision}"]
            apart = max(abs(a / b - 1) for a, b in zip(ours.losses, other.losses, strict=True))
            out.check(f"{data}: loss in {precision}, largest difference from Trainer", round(apart, 6), at_most=bound)
            apart = max(abs(math.log(a / b)) for a, b in zip(ours.norms, other.norms, strict=True))
            out.check(f"{data}: gradient norm in {precision}, same", round(apart, 5), at_most=20 * bound)


def _flops(lengths: list[int], supervised: float) -> float:
    """Return the FLOPs that a real token needs: matrices, causal attention within samples, head where supervised."""
    attention = ATTENTION * sum(length**2 / 2 for length in lengths) / sum(lengths)
    return 6 * (PARAMETERS + attention + 512 * SMALL * supervised)


if __name__ == "__main__":
    report.main(measure, __doc__ or "", system_prompt=system_prompt, fp32=fp32)
