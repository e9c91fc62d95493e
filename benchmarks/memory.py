"""Peak memory of training with a vocabulary of 152,000, beside transformers' Trainer and TRL's chunked loss.

The same 30M-parameter body with the larger embedding, the same samples, fp32, fused AdamW. What the process held before
it loaded the model is taken off; what remains are weights, gradients, optimizer state, activations and logits.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import report
from peers.material import source, write_model, write_samples
from peers.runs import run
from peers.shape import LARGE
from peers.supervised import Tuning

DATA, CUTOFF, ROWS, LENGTH = "alpaca_en_demo", 1024, 8, 512


def measure(out: report.Report, quick: bool) -> None:
    """Run two steps of each, with full training and with LoRA."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        model = write_model(scratch / "model", LARGE, DATA)
        lengths = [len(row["input_ids"]) for row in write_samples(scratch / "samples.jsonl", model, DATA, CUTOFF)]
        whole = Tuning(
            model=str(model),
            samples=str(scratch / "samples.jsonl"),
            data=source(DATA, CUTOFF),
            output=str(scratch / "run"),
            steps=2,
            rows=ROWS,
        )
        packed_rows = max(1, round(ROWS * fmean(lengths) / LENGTH))
        for name, spec in (("full", whole), ("lora", replace(whole, adapter={"name": "lora", "rank": 8})))[
            : 1 if quick else 2
        ]:
            peers = {
                "gym": run("gym", spec),
                "trainer": run("trainer", spec),
                "trl": run("trl", replace(spec, rows=packed_rows, length=LENGTH)),
            }
            peaks = {peer: result.peak_bytes - result.base_bytes for peer, result in peers.items()}
            out.figures[name] = {
                "peak_mib": {peer: round(peak / 2**20) for peer, peak in peaks.items()},
                "tokens_per_step": {peer: round(result.tokens / 2) for peer, result in peers.items()},
                "loss": {peer: result.losses for peer, result in peers.items()},
                "gradient_norm": {peer: result.norms for peer, result in peers.items()},
            }
            out.check(f"{name}: Gym / Trainer, peak", round(peaks["gym"] / peaks["trainer"], 3), at_most=0.5)
            out.check(f"{name}: Gym / TRL, peak", round(peaks["gym"] / peaks["trl"], 3), at_most=1.0)


if __name__ == "__main__":
    report.main(measure, __doc__ or "")
