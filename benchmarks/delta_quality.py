"""What one and two bits keep of the packaged model's gain from a fine-tune, distilled and not; and what a LoRA becomes.

The gain is that of the loss on samples that no step of distillation saw; they choose the best scales. One bit is one bit: three
values, which matrices with many unchanged numbers become by default, are measured apart. `--quick`: fewer steps.
`--real`, instead: the 30M model that has read tinyshakespeare and a part of Wikipedia, fine-tuned on alpaca_en_demo.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peers.material import DATA
from peers.pretrained import TUNED, pretrained
from report import Report, main

from gym_bitdelta.delta import file
from gym_core import execute, load_recipe
from gym_manage.recorded import recorded
from gym_manage.reopened import reopened

TASKS = {"sources": [{"name": "tiny-tasks", "count": 400}]}
LEAST = {1: 0.90, 2: 0.98}  #: share of the gain that is to be kept, by bits
LESS_REAL = 0.03  #: by how much less is to be kept on real text
KEYS = ("file_bytes", "ratio", "bits_per_weight", "distillation", "holdout")  #: of the figures
TEN_TIMES, MOST_ERROR = 10, 0.30  #: of a LoRA: how much smaller than in bf16, and its squared relative error


def trained(output: Path, steps: int, **sections: Any) -> dict[str, Any]:
    """Train, and return the recipe."""
    recipe: dict[str, Any] = {"model": "tiny", "data": TASKS, "algorithm": "sft", "output": str(output), **sections}
    recipe["train"] = {
        "max_steps": steps,
        "learning_rate": 1e-3,
        "precision": "fp32",
        "plot": False,
        **sections.get("train", {}),
    }
    execute(load_recipe(recipe))
    return recipe


def made(recipe: Mapping[str, Any], name: str, **options: Any) -> tuple[dict[str, Any], Path]:
    """Make a delta of what was trained, and return what was measured, and its file."""
    output = Path(recipe["output"])
    run, hook = reopened({**recipe, "quantization": {"name": "bitdelta", **options}}, output)
    found = hook.quantize(run=run, artifact=recorded(output).trained, into=output / name)
    return json.loads((found.path / "delta.json").read_text()), found.path / file.NAME


def codes(path: Path) -> set[str]:
    """Return how the matrices of layers are coded."""
    entries = file.header_of(path).entries().items()
    return {f"{entry.code}{entry.bits}" for name, entry in entries if entry.kind == "dense-q" and "layers" in name}


def measure(report: Report, quick: bool) -> None:
    """Train once, and make a delta of it in every setting; then the same of a LoRA."""
    with tempfile.TemporaryDirectory() as scratch:
        recipe = trained(Path(scratch) / "whole", 20 if quick else 60)
        settings = [(bits, 1.0) for bits in LEAST] + [(1, 0.2)]
        for bits, above in settings:
            for steps in (0, 40 if quick else 200):
                name = f"{bits} bits, ternary above {above:.0%}, {steps} steps"
                told, path = made(recipe, name, bits=bits, ternary_above=above, distill_steps=steps)
                report.figures[name] = {key: told[key] for key in KEYS} | {"codes": sorted(codes(path))}
            if above == 1.0:
                assert codes(path) == {f"signs{bits}"}, "other codes than those that the figure is of"
                report.check(
                    f"share of the gain kept by {bits} bits", told["holdout"]["recovered"], at_least=LEAST[bits]
                )
        recipe = trained(Path(scratch) / "lora", 40 if quick else 200, adapter={"name": "lora", "rank": 16})
        told, path = made(recipe, "delta", distill_steps=0)
        report.figures["LoRA of rank 16"] = {key: told[key] for key in (*KEYS, "adapter_bf16_bytes", "adapter_ratio")}
        report.check("LoRA: largest squared relative error", max(told["squared_errors"].values()), at_most=MOST_ERROR)
        report.check("LoRA: times smaller than the adapter in bf16", told["adapter_ratio"], at_least=TEN_TIMES)


def measure_real(report: Report, quick: bool) -> None:
    """Fine-tune the 30M model on real instructions, all weights, and make a delta of it in one bit and in two."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        sections = {
            "model": str(pretrained(root / "30M")),
            "data": {"sources": [TUNED], "dataset_dir": str(DATA), "cutoff": 256, "validation": 0.1},
            "train": {"batch_size": 4, "learning_rate": 3e-4, "warmup": 5, "precision": "bf16"},
        }
        recipe = trained(root / "whole", 20 if quick else 60, **sections)
        for bits, least in LEAST.items():
            name = f"30M, {bits} bits"
            told, path = made(recipe, name, bits=bits, ternary_above=1.0, distill_steps=40 if quick else 100)
            report.figures[name] = {key: told[key] for key in KEYS} | {"codes": sorted(codes(path))}
            assert codes(path) == {f"signs{bits}"}, "other codes than those that the figure is of"
            kept = told["holdout"]["recovered"]
            report.check(f"30M: share of the gain kept by {bits} bits", kept, at_least=least - LESS_REAL)


if __name__ == "__main__":
    main(measure, __doc__ or "", real=measure_real)
