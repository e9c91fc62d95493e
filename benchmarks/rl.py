"""Reinforcement learning beside TRL's GRPOTrainer: samples/s of the update alone and end to end, and peak memory.

Both train one 30M-parameter model by GRPO with fused AdamW on the same prompts, groups of 8, judged by the same function,
without a reference model; TRL with a dynamic and with a static cache. "long prompts" are of 512 tokens, with answers
of up to 64. "mixed answers" are of up to 256 tokens to prompts of 32: one token in 128 of the model ends an answer, for
both sides alike. The sides take turns, each time in a process of its own; the best run of each counts.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import report
from peers.material import write_model, write_prompts
from peers.rollouts import GROUP, Rolled, Rolling
from peers.runs import run
from peers.shape import SMALL

from gym_torch.kernels import precision_probe

DATA = "alpaca_en_demo"
ROWS, WARM = 24, 1  #: samples in a step, and steps that warm up


@dataclass(frozen=True)
class Task:
    """What is asked, and how much faster Gym is to be."""

    prompt: int  #: tokens
    longest: int  #: tokens of an answer
    ends: int  #: tokens that end an answer
    update: dict[str, float]  #: target by precision, where there is one
    whole: dict[str, float]  #: target


TASKS = {
    "long prompts": Task(512, 64, ends=1, update={"fp32": 5, "bf16": 7}, whole={"fp32": 3.5, "bf16": 5.5}),
    "mixed answers": Task(32, 256, ends=SMALL // 128, update={}, whole={"fp32": 1.5, "bf16": 1.5}),
}


def measure(out: report.Report, quick: bool) -> None:
    """Compare on both tasks, in the precision that is fast here."""
    precision = precision_probe.trial(512).precision
    out.figures["precision"] = precision
    for name, task in TASKS.items():
        with tempfile.TemporaryDirectory() as scratch:
            _compare(out, Path(scratch), name, task, precision, quick)


def _compare(out: report.Report, scratch: Path, name: str, task: Task, precision: str, quick: bool) -> None:
    steps, rows = WARM + 1, 16 if quick else ROWS
    model, prompts = write_model(scratch / "model", SMALL, DATA, ends=task.ends), scratch / "prompts.jsonl"
    write_prompts(prompts, model, DATA, steps * rows // GROUP, task.prompt)
    spec = Rolling(
        model=str(model),
        prompts=str(prompts),
        output=str(scratch / "run"),
        steps=steps,
        rows=rows,
        accumulate=rows // GROUP,
        precision=precision,
        learning_rate=1e-5,
        longest=task.longest,
    )
    settings = {"gym": [spec], "trl": [spec, *([] if quick else [replace(spec, cache="static")])]}
    runs: dict[str, list[Rolled]] = {"gym": [], "trl": []}
    for who, tried in [*settings.items()] * (1 if quick else 2):
        runs[who] += [run(who, each) for each in tried]
    length = fmean(tokens for each in runs.values() for one in each for tokens in one.tokens)
    whole = {who: max(_tokens_per_second(one, one.seconds) for one in each) / length for who, each in runs.items()}
    update = {who: max(_tokens_per_second(one, one.updates) for one in each) / length for who, each in runs.items()}
    peaks = {who: min(one.peak_bytes - one.base_bytes for one in each) for who, each in runs.items()}
    out.figures[name] = {
        "answer_tokens": {who: round(fmean(each[0].tokens), 1) for who, each in runs.items()},
        "samples_per_second": {who: round(rate, 2) for who, rate in whole.items()},
        "samples_per_second_update": {who: round(rate, 2) for who, rate in update.items()},
        "peak_mib": {who: round(peak / 2**20) for who, peak in peaks.items()},
        "loss": {who: [round(loss, 6) for loss in each[0].losses] for who, each in runs.items()},
        "gradient_norm": {who: [round(norm, 4) for norm in each[0].norms] for who, each in runs.items()},
    }
    if precision in task.update:
        out.check(
            f"{name}: Gym / TRL, samples/s of the update",
            round(update["gym"] / update["trl"], 2),
            None,
            task.update[precision],
        )
    out.check(
        f"{name}: Gym / TRL, samples/s end to end", round(whole["gym"] / whole["trl"], 2), None, task.whole[precision]
    )
    out.check(f"{name}: Gym / TRL, peak memory", round(peaks["gym"] / peaks["trl"], 3), at_most=1.0)


def _tokens_per_second(one: Rolled, seconds: list[float]) -> float:
    """Return the tokens of answers in a second: where lengths are drawn, samples/s would depend on luck."""
    return one.samples * sum(one.tokens[WARM:]) / sum(seconds[WARM:])


if __name__ == "__main__":
    report.main(measure, __doc__ or "")
