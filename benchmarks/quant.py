"""Size, KL divergence, perplexity, tokens/s and step time of a model under each quantizer of finished models.

Of the packaged model, and of one of 30M parameters that has read tinyshakespeare and a part of Wikipedia (`peers/pretrained.py`);
`--tiny` and `--large` take one of them.
Calibration and samples held out are the same for all quantizers. Tokens/s are of a forward pass of plain transformers in the
precision of the model: its compressed-tensors checkpoints are unpacked with the first answer, so fewer bits are no faster on a
CPU. A step is one of LoRA over the quantized weights. The samples held out are dealt out in ten draws, on each of which two
quantizers are compared; checks hold the upper end of the 95 % interval of the mean ratio. The picture has the divergence over
the bits that a weight takes; `--quick` takes the packaged model with all samples, for on fewer of them the intervals say nothing,
and the quantizers that checks compare; it takes times of one alone, and draws into the folder for temporary files.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from peers.pretrained import pretrained, texts
from peers.process import executed
from report import Report, main
from transformers import AutoModelForCausalLM

from gym_core import Artifact, Run, load_recipe
from gym_core.loading import load_component
from gym_core.record import RunRecord
from gym_data.location import locate
from gym_quant import RTN
from gym_quant.post_training import calibration
from gym_quant.post_training.quantizer import PostTrainingQuantizer

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "quantization.png"
#: Settings by name: the quantizer, and what is not its default.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8": ("fp8", {}),
    "rtn 8": ("rtn", {"bits": 8}),
    **{
        f"{name} {bits}{'' if sym else ' asym'}": (name, {"bits": bits, "sym": sym})
        for bits in (4, 3)
        for sym in (True, False)
        for name in ("rtn", "gptq", "awq")
    },
    "mixed 4.25": ("mixed", {"bits_per_weight": 4.25}),
    "mixed 3.5": ("mixed", {"bits_per_weight": 3.5}),
}
SPEED = (8, 128)  #: rows and tokens of a batch whose time is taken
DRAWS, STUDENT = 10, 2.262  #: of samples held out; quantile of Student's t at 97.5 % for one degree of freedom less
STEPS = 4  #: of LoRA, of which the first is not counted
COMPARED = [label for label, (name, _) in SETTINGS.items() if name in ("rtn", "gptq", "awq") and label != "rtn 8"]
TIMED = "rtn 4"  #: setting whose times `--quick` takes


@dataclass(frozen=True)
class Subject:
    """A model, the data it is calibrated and measured on, and the algorithm that reads them."""

    name: str
    path: Path
    data: dict[str, Any]
    algorithm: str
    samples: dict[str, int]
    settings: Collection[str] = tuple(SETTINGS)
    timed: Collection[str] = tuple(SETTINGS)  #: of these, those whose times are taken


def measure(report: Report, quick: bool) -> None:
    """Quantize in every setting."""
    measure_tiny(report, quick)
    if not quick:
        measure_large(report, quick)
    picture = Path(tempfile.gettempdir(), PICTURE.name) if quick else PICTURE
    _draw(report.figures, picture)
    report.figures["picture"] = str(picture)


def measure_tiny(report: Report, quick: bool) -> None:
    """Quantize the packaged model in every setting."""
    with tempfile.TemporaryDirectory() as scratch:
        _compare(report, tiny(quick), Path(scratch))


def measure_large(report: Report, quick: bool) -> None:
    """Quantize the model of 30M parameters in every setting."""
    with tempfile.TemporaryDirectory() as scratch:
        _compare(report, large(Path(scratch)), Path(scratch))


def _compare(report: Report, subject: Subject, root: Path) -> None:
    found = report.figures[subject.name] = quantized(subject, root / f"{subject.name}-quantized")
    for bits in (4, 3):
        for name in ("gptq", "awq"):
            for grid in ("", " asym"):
                _better(report, subject.name, found, f"{name} {bits}{grid}", f"rtn {bits}{grid}")


def tiny(quick: bool) -> Subject:
    """Return the packaged model with the tasks that it knows."""
    data = {"sources": [{"name": "tiny-tasks", "count": 3000}]}
    subject = Subject("tiny", locate("tiny"), data, "sft", {"holdout_samples": 400})
    return replace(subject, settings=COMPARED, timed=(TIMED,)) if quick else subject


def large(folder: Path) -> Subject:
    """Return the model of 30M parameters with the texts that it has read."""
    samples = {"holdout_samples": 40, "calibration_samples": 32}
    return Subject("30M", pretrained(folder), texts(), "pretrain", samples)


def quantized(subject: Subject, root: Path) -> dict[str, Any]:
    """Return what is found of a model, as it is and quantized in every setting."""
    recipe = {"model": str(subject.path), "data": subject.data, "algorithm": subject.algorithm, "output": str(root)}
    root.mkdir()
    run = Run(load_recipe(recipe), root, RunRecord(root / "run.json"))
    reference = Reference(subject, run)
    found: dict[str, Any] = {"as it is": {"file_bytes": _bytes(subject.path)} | _times(subject, subject.path, root)}
    for label in subject.settings:
        name, options = SETTINGS[label]
        into = root / label.replace(" ", "-")
        config = load_component("quantizers", name)[1](**subject.samples, **options)
        made = config.build().quantize(run, Artifact(subject.path), into)
        told = json.loads((made.path / "quantization.json").read_text(encoding="utf-8"))
        kept = ("bits_per_weight", "bits_per_weight_of_all", "file_bytes", "seconds", "peak_bytes")
        found[label] = {key: told[key] for key in kept} | told["holdout"]
        if label in subject.timed:
            found[label] |= _times(subject, made.path, root)
        found[label]["kl_of_draws"] = reference.divergences(PostTrainingQuantizer(config).restore(made))
    return found


class Reference:
    """The model as it is, and the samples held out."""

    @torch.no_grad()
    def __init__(self, subject: Subject, run: Run) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(subject.path, local_files_only=True, dtype=torch.float32)
        samples = calibration.draw(RTN(**subject.samples), run, subject.path)
        assert samples is not None
        self.rows = samples.holdout
        self.wanted = list(self._predicted())

    @torch.no_grad()
    def divergences(self, weights: dict[str, torch.Tensor]) -> list[float]:
        """Return the KL divergence, in nats a token, of a model of other weights, on each draw of the samples."""
        own = {name: weight.clone() for name, weight in self.model.state_dict().items()}
        self.model.load_state_dict(weights, strict=False)
        sums, counts = [0.0] * DRAWS, [0] * DRAWS
        for row, (wanted, now) in enumerate(zip(self.wanted, self._predicted(), strict=True)):
            apart = wanted.exp() * (wanted - now)
            sums[row % DRAWS] += float(apart.sum(dtype=torch.float64))
            counts[row % DRAWS] += len(wanted)
        self.model.load_state_dict(own)
        return [total / count for total, count in zip(sums, counts, strict=True)]

    def _predicted(self) -> Iterator[torch.Tensor]:
        """Yield the log-probabilities `[tokens, vocabulary]` behind the tokens of each row that training predicts."""
        for part in self.rows.batches():
            logits = self.model(self.rows.tokens[part], use_cache=False).logits
            for own, predicts in zip(logits, self.rows.predicts[part], strict=True):
                yield own[predicts].log_softmax(-1)


def _better(report: Report, of: str, found: dict[str, Any], name: str, than: str) -> None:
    pairs = zip(found[name]["kl_of_draws"], found[than]["kl_of_draws"], strict=True)
    ratios = [math.log(own / other) for own, other in pairs]
    mean, wide = statistics.mean(ratios), STUDENT * statistics.stdev(ratios) / math.sqrt(DRAWS)
    low, middle, high = (math.exp(mean + by * wide) for by in (-1, 0, 1))
    found[name][f"kl_over_{than}"] = {"low": low, "mean": middle, "high": high}
    report.check(f"{of}: KL divergence of {name} over that of {than}, at most", high, at_most=1)


def _times(subject: Subject, path: Path, root: Path) -> dict[str, float]:
    """Return tokens/s of plain transformers, and the seconds of a step of LoRA."""
    lora = {
        "model": str(path),
        "data": subject.data | {"validation": 0},
        "algorithm": subject.algorithm,
        "adapter": {"name": "lora", "rank": 8},
        "train": {"max_steps": STEPS, "batch_size": 8, "plot": False, "overwrite": True, "log_every": 1},
        "output": str(root / "lora"),
    }
    steps, _ = executed(lora)
    return {"tokens_per_second": _speed(path), "step_seconds": min(steps["seconds"][1:])}


@torch.no_grad()
def _speed(path: Path) -> float:
    """Return the tokens/s of a forward pass of plain transformers: the best of three."""
    model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
    tokens = torch.arange(SPEED[0] * SPEED[1]).view(SPEED) % model.config.vocab_size
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        model(tokens, use_cache=False)
        seconds.append(time.perf_counter() - began)
    return tokens.numel() / min(seconds[1:])


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


def _draw(figures: dict[str, Any], into: Path) -> None:
    """Draw a line for each method and grid over its bits; methods have colours, grids with zero points broken lines."""
    figure = Figure(figsize=(5.5 * len(figures), 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    names = dict.fromkeys(label.split()[0] for found in figures.values() for label, of in found.items() if "kl" in of)
    colours = {name: f"C{place}" for place, name in enumerate(names)}  # the same in all panels
    for axes, (subject, found) in zip(figure.subplots(1, len(figures), squeeze=False)[0], figures.items(), strict=True):
        series: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        for label, of in found.items():
            if "kl" in of:
                series.setdefault((label.split()[0], "asym" in label), []).append((of["bits_per_weight"], of["kl"]))
        for (name, zero), places in series.items():
            how = {"color": colours[name], "marker": "s" if zero else "o", "linestyle": "--" if zero else "-"}
            label = f"{name}, zero points" if zero else name
            axes.plot(*zip(*sorted(places), strict=True), **how, label=label)
        axes.set(title=subject, xlabel="bits per weight, quantized layers", yscale="log")
        axes.set_ylabel("KL divergence, nats per token")
        axes.legend(fontsize=8)
    figure.savefig(into, dpi=120)


if __name__ == "__main__":
    main(measure, __doc__ or "", tiny=measure_tiny, large=measure_large)
