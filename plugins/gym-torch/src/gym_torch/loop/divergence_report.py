"""`divergence.json` and `divergence.txt`: what is known of the step that a run ended at because it diverged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gym_core import DataError, Run
from gym_core.errors import printable
from gym_core.files import write_atomically
from gym_core.record import plain
from gym_data.tokenizer import Tokenizer
from gym_torch.console import say
from gym_torch.loop.nonfinite import Diverged

REPORT, TEXT = "divergence.json", "divergence.txt"
SHOWN = 20  #: samples in the text; the other file has all


@contextmanager
def written(run: Run, model: Path) -> Iterator[None]:
    """Have what the block ends of, where it diverges, written into the output of the run; `model` has the tokenizer."""
    if run.ranks.main and not run.resuming:
        for name in (REPORT, TEXT):  # of a run that ended before its first step, whose directory this one has
            (run.output / name).unlink(missing_ok=True)
    try:
        yield
    except Diverged as error:
        if run.ranks.main:
            report = plain(_readable(error.report, model)) | {"try": [*_advice(error.report), error.problems[0].fix]}
            with suppress(OSError):  # a full disk must not hide what happened
                write_atomically(run.output / REPORT, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
                write_atomically(run.output / TEXT, _text(report))
                say(f"what is known of it: {run.output / TEXT}")
        raise


def _readable(report: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """Return a report with the beginning of the text of each sample in place of its tokens."""
    tokenizer = None
    with suppress(DataError):  # a model need not have one
        tokenizer = Tokenizer(model)
    samples = []
    for told in report.get("samples", ()):
        rest = {name: value for name, value in told.items() if name != "tokens"}
        samples.append(rest | ({"text": tokenizer.decode(told["tokens"])} if tokenizer and "tokens" in told else {}))
    return {**report, "samples": samples}


def _advice(report: Mapping[str, Any]) -> list[str]:
    """Return what the findings suggest."""
    samples = [told for told in report.get("samples", ()) if "finite" in told]
    bad = [told["sample"] for told in samples if not told["finite"]]
    found = []
    if report["weights"]["not_finite"]:
        found.append(
            "the weights are ruined: an earlier checkpoint has sound ones; lower `train.learning_rate`, or warm up longer"
        )
    elif samples and len(bad) == len(samples):
        found.append(
            "every sample does it: it is not the data; lower `train.learning_rate`, or set `train.precision: fp32`"
        )
    elif bad:
        found.append(f"look at these rows, mend them or take them out of the data: {', '.join(bad[:5])}")
    elif samples:
        found.append(f"look at the rows with the largest loss first: {samples[0]['sample']}")
    if "spike" in report:
        found.append(
            "many spikes: lower `train.learning_rate`, warm up longer, or make steps larger (`train.accumulate`)"
        )
    else:
        found.append("`train: {loss_spike: {}}` in another `output` skips such steps by itself")
    return found


def _text(report: Mapping[str, Any]) -> str:
    lines = [f"step {report['step']}: {report['why']}", ""]
    for told in report["samples"][:SHOWN]:
        figures = [f"{name} {told[name]:.4g}" for name in ("loss", "grad_norm") if told.get(name) is not None]
        figures += ["not finite"] * (told.get("finite") is False)
        lines.append(f"{told['sample']}  {', '.join(figures)}".rstrip())
        if "text" in told:
            lines.append(f"    {printable(told['text'], 160)}")
    if (more := len(report["samples"]) - SHOWN) > 0:
        lines.append(f"and {more} more, in {REPORT}")
    weights = report["weights"]
    lines += ["", f"numbers of trained weights that are not finite: {weights['not_finite']:,}; the largest are in"]
    for told in weights["parameters"]:
        sizes = ", ".join(f"{name} {told[name]:.4g}" for name in ("largest", "rms") if told[name] is not None)
        lines.append(f"    {told['name']}  {sizes}")
    return "\n".join([*lines, "", "What to try:", *(f"* {line}" for line in report["try"]), ""])
