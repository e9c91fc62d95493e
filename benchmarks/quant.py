"""Size, KL divergence, perplexity and tokens/s of the packaged model under each quantizer of finished models.

All of one data set, calibration and samples held out alike. Tokens/s are of plain transformers on this machine, in the precision
of the model: its compressed-tensors checkpoints are unpacked with the first answer, so fewer bits are no faster on a CPU. The
picture has the divergence over the bits that a weight takes; `--quick` measures on fewer samples and draws nothing.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from report import Report, main
from transformers import AutoModelForCausalLM

from gym_core import Artifact, Run, load_recipe
from gym_core.loading import load_component
from gym_core.record import RunRecord
from gym_data.location import locate

MODEL = "tiny"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "quantization.png"
#: Settings by name: the quantizer, and what is not its default.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8": ("fp8", {}),
    "rtn 8": ("rtn", {"bits": 8}),
    **{
        f"{name} {bits}{'' if sym else ' asym'}": (name, {"bits": bits, "sym": sym})
        for bits in (4, 3)
        for name, sym in (("rtn", True), ("gptq", True), ("rtn", False), ("awq", False))
    },
    "mixed 4.25": ("mixed", {"bits_per_weight": 4.25}),
    "mixed 3.5": ("mixed", {"bits_per_weight": 3.5}),
}
SPEED = (8, 128)  #: rows and tokens of a batch whose time is taken


def measure(report: Report, quick: bool) -> None:
    """Quantize in every setting."""
    model = locate(MODEL)
    data = {"sources": [{"name": "tiny-tasks", "count": 600 if quick else 3000}]}
    recipe = {"model": MODEL, "data": data, "algorithm": "sft"}
    samples = {"calibration_samples": 128, "holdout_samples": 100 if quick else 1000}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        run = Run(load_recipe({**recipe, "output": scratch}), root, RunRecord(root / "run.json"))
        report.figures["as it is"] = {"file_bytes": _bytes(model), "tokens_per_second": _speed(model)}
        for label, (name, options) in SETTINGS.items():
            config = load_component("quantizers", name)[1](**samples, **options)
            made = config.build().quantize(run, Artifact(model), root / label.replace(" ", "-"))
            told = json.loads((made.path / "quantization.json").read_text(encoding="utf-8"))
            kept = ("bits_per_weight", "bits_per_weight_of_all", "file_bytes", "seconds", "peak_bytes")
            report.figures[label] = {
                **{key: told[key] for key in kept},
                **told["holdout"],
                "tokens_per_second": _speed(made.path),
            }
    for bits in (4, 3):
        _better(report, f"gptq {bits}", f"rtn {bits}")
        _better(report, f"awq {bits} asym", f"rtn {bits} asym")
    if not quick:
        _draw(report.figures)


def _better(report: Report, name: str, than: str) -> None:
    report.check(
        f"KL divergence of {name} over that of {than}",
        report.figures[name]["kl"] / report.figures[than]["kl"],
        at_most=1,
    )


@torch.no_grad()
def _speed(path: Path) -> float:
    """Return the tokens/s of a forward pass of plain transformers: the best of five."""
    model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
    tokens = torch.arange(SPEED[0] * SPEED[1]).view(SPEED) % model.config.vocab_size
    seconds = []
    for _ in range(6):
        began = time.perf_counter()
        model(tokens, use_cache=False)
        seconds.append(time.perf_counter() - began)
    return tokens.numel() / min(seconds[1:])


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


def _draw(figures: dict[str, Any]) -> None:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for label, found in figures.items():
        if "kl" in found:
            axes.plot(found["bits_per_weight"], found["kl"], "o")
            axes.annotate(
                label, (found["bits_per_weight"], found["kl"]), xytext=(5, 3), textcoords="offset points", fontsize=8
            )
    axes.set(xlabel="bits per weight, quantized layers", ylabel="KL divergence, nats per token", yscale="log")
    figure.savefig(PICTURE, dpi=120)


if __name__ == "__main__":
    main(measure, __doc__)
