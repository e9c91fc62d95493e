"""What one and two bits keep of the packaged model's gain from a fine-tune, with and without distillation; and file sizes.

The gain is that of the loss on samples that no step of distillation saw; they choose the best scales. `--quick`: fewer steps.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from report import Report, main

from gym_core import execute, load_recipe
from gym_manage.recorded import recorded, reopened

TASKS = {"sources": [{"name": "tiny-tasks", "count": 400}]}
LEAST = {1: 0.90, 2: 0.98}  #: share of the gain that is to be kept, by bits


def measure(report: Report, quick: bool) -> None:
    """Train once, and make a delta of it in every setting."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "run"
        recipe = {"model": "tiny", "data": TASKS, "algorithm": "sft", "output": str(output)}
        recipe["train"] = {"max_steps": 20 if quick else 60, "learning_rate": 1e-3, "precision": "fp32", "plot": False}
        execute(load_recipe(recipe))
        for bits, least in LEAST.items():
            for steps in (0, 40 if quick else 200):
                options = {"name": "bitdelta", "bits": bits, "distill_steps": steps}
                run, hook = reopened({**recipe, "quantization": options}, output)
                made = hook.quantize(run=run, artifact=recorded(output).trained, into=output / f"{bits}-{steps}")
                told = json.loads((made.path / "delta.json").read_text())
                kept = {key: told[key] for key in ("file_bytes", "ratio", "bits_per_weight", "distillation", "holdout")}
                report.figures[f"{bits} bits, {steps} steps"] = kept
            report.check(f"share of the gain kept by {bits} bits", told["holdout"]["recovered"], at_least=least)


if __name__ == "__main__":
    main(measure, __doc__ or "")
