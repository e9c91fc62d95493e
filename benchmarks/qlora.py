"""Whether LoRA learns over quantized bases what it learns over one in bf16, and what a quantized mixture of experts saves.

Every method trains by `recipes/tiny/sft.yaml`, 80 steps over the same samples in the same order, and answers held-out tasks with
the base that it was trained on, for each seed. At 4 bits or more it has to reach, in the mean, 95 % of what LoRA over
bf16 gains; below, the figure is published. Bytes are those of the linear layers in memory, beside what the quantizer declares.
The mixture is loaded from files in bf16 and takes two steps of LoRA of experts, each kind in a process of its own; memory is what
it holds more than before.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from mixture import alone, shape, tokens
from report import Report, main
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_adapters import ExpertLoRA
from gym_core import Quantizer, execute, load_recipe
from gym_core.loading import load_component
from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_tiny.tasks import generate
from gym_torch.generation.generator import complete
from gym_torch.model import mapped_weights
from gym_torch.model.adapted import build_adapter
from gym_torch.quantization.weights import stored_modules

RECIPE = Path(__file__).parents[1] / "recipes" / "tiny" / "sft.yaml"
HELD_OUT = 350  #: tasks, fifty of each kind
SEEDS = (0,)  #: of first values of adapters and the order of samples
ENOUGH, EXACT, SAVED = 0.95, 0.02, 0.4
MIB = 2**20
Options = dict[str, Any]
#: What is compared, with the bits of a weight.
METHODS: dict[str, tuple[int, Options]] = {
    "bnb_4bit nf4": (4, {"name": "bnb_4bit"}),
    "bnb_4bit fp4": (4, {"name": "bnb_4bit", "quant_type": "fp4"}),
    "bnb_8bit": (8, {"name": "bnb_8bit"}),
    **{f"hqq {bits}": (bits, {"name": "hqq", "bits": bits}) for bits in (8, 6, 5, 4, 3, 2, 1)},
    **{
        f"{name} {kind}": (bits, {"name": name, "weights": kind})
        for name in ("quanto", "torchao")
        for kind, bits in (("int8", 8), ("float8", 8), ("int4", 4))
    },
    "quanto int2": (2, {"name": "quanto", "weights": "int2"}),
}
SHAPE = shape(layers=4, experts=64)
QUICK = ("bnb_4bit nf4", "hqq 4")


def accuracy(model: PreTrainedModel) -> float:
    """Return the share of held-out tasks that a model answers rightly."""
    tasks = list(generate(None, HELD_OUT, seed=1, split="heldout"))
    rows = [task.row() | {"messages": list(task.messages)} for task in tasks]
    with torch.autocast("cpu", torch.bfloat16):
        answers = complete(model.eval(), Tokenizer(locate("tiny")), rows, max_new_tokens=32)
    return fmean(task.check(answer) for task, answer in zip(tasks, answers, strict=True))


def quantizer_of(options: Options | None) -> Quantizer | None:
    """Return the component that options of a recipe mean."""
    if options is None:
        return None
    kind = load_component("quantizers", options["name"])[1]
    return cast(Quantizer, kind(**{key: value for key, value in options.items() if key != "name"}))


def trained(options: Options | None, steps: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Train by the recipe over a base that is quantized so; return accuracy, bytes and seconds of a run."""
    base = mapped_weights.load(locate("tiny"), dtype=torch.float32, quantizer=quantizer_of(options))
    found = size(base, quantizer_of(options)) | ({"before": accuracy(base)} if options is None else {})
    began = time.perf_counter()
    right = [learned(options, steps, seed) for seed in seeds]
    seconds = (time.perf_counter() - began) / len(seeds)
    found |= {"seconds": round(seconds, 1), "accuracies": right, "accuracy": fmean(right)}
    print(options, json.dumps(found), file=sys.stderr, flush=True)
    return found


def learned(options: Options | None, steps: int, seed: int) -> float:
    """Train once; return the accuracy."""
    model = json.dumps({"path": "tiny"} | ({"quantization": options} if options else {}))
    settings = {
        "train.precision": "bf16",
        "train.max_steps": steps,
        "train.seed": seed,
        "train.plot": "false",
        "model": model,
    }
    with TemporaryDirectory() as folder:
        recipe = load_recipe(RECIPE, [f"{key}={value}" for key, value in settings.items()] + [f"output={folder}/run"])
        outcome = execute(recipe)
        base = mapped_weights.load(locate("tiny"), dtype=torch.float32, quantizer=quantizer_of(options))
        assert recipe.adapter is not None
        adapted = build_adapter(recipe.adapter, base)
        adapted.load(adapted.read(outcome.artifact.path))
        for name, module in stored_modules(base).items():  # decoded once, not for every token
            base.set_submodule(name, module.plain(torch.float32))
        return accuracy(base)


def size(model: PreTrainedModel, quantizer: Quantizer | None) -> dict[str, Any]:
    """Return the bytes of the linear layers but the head, as they are held, declared, and as bits of a weight."""
    if quantizer is None:
        linear = [layer for layer in model.base_model.modules() if isinstance(layer, nn.Linear)]
        return {"bytes": sum(2 * layer.weight.numel() for layer in linear), "bits_per_weight": 16}
    stored = stored_modules(model)
    shapes = {name: tuple(weight().shape) for name, each in stored.items() for weight in each.plain_weights().values()}
    taken = sum(tensor.nbytes for module in stored.values() for tensor in module.buffers())
    bits = 8 * taken / sum(module.numbers for module in stored.values())
    return {"bytes": taken, "declared": quantizer.declared_bytes(shapes), "bits_per_weight": round(bits, 2)}


class Watch:
    """The most memory that this process has for itself, which files that are mapped are not, above what it had before."""

    def __init__(self) -> None:
        """Begin to look, every few milliseconds."""
        self.before = self.most = own()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self) -> None:
        """Look until it is over."""
        while not self.over.wait(0.003):
            self.most = max(self.most, own())

    def end(self) -> int:
        """Return the bytes."""
        self.over.set()
        self.thread.join()
        return self.most - self.before


def own() -> int:
    """Return the bytes of this process that are in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def mixture(path: Path, options: Options | None) -> dict[str, int]:
    """Load a mixture, put LoRA beside its experts, take two steps, and return what memory that took."""
    if quantizer := quantizer_of(options):
        quantizer.build()  # the library is not what is measured
    mapped_weights.load(locate("tiny"))
    whole, loading = Watch(), Watch()
    model = mapped_weights.load(path, dtype="auto", quantizer=quantizer)
    loaded = loading.end()
    weights = sum(tensor.nbytes for tensor in {id(t): t for t in [*model.parameters(), *model.buffers()]}.values())
    ExpertLoRA(rank=8).build(model=model, seed=0)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-3)
    for step in range(2):
        batch = tokens(step, 2, 128)
        with torch.autocast("cpu", torch.bfloat16):
            model.train()(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"weights": weights, "peak_of_loading": loaded, "peak_of_training": whole.end()}


def measure(report: Report, quick: bool) -> None:
    """Fill the report."""
    experts(report)
    steps, seeds = (40, SEEDS[:1]) if quick else (80, SEEDS)
    plain = report.figures["bf16"] = trained(None, steps, seeds)
    for name, (bits, options) in METHODS.items():
        if quick and name not in QUICK:
            continue
        found = report.figures[name] = trained(options, steps, seeds)
        gain = (found["accuracy"] - plain["before"]) / (plain["accuracy"] - plain["before"])
        found["gain"] = round(gain, 3)
        report.check(f"{name}: bytes off what is declared", abs(found["declared"] / found["bytes"] - 1), at_most=EXACT)
        if bits >= 4:
            report.check(f"{name}: share of the gain over bf16", found["gain"], at_least=ENOUGH)


def experts(report: Report) -> None:
    """Measure what quantizing saves of a mixture."""
    found = {}
    with TemporaryDirectory() as folder:
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(SHAPE).to(torch.bfloat16).save_pretrained(folder)
        for name, options in (("bf16", None), ("bnb_4bit", {"name": "bnb_4bit"})):
            taken = alone(mixture, Path(folder), options)
            found[name] = {key: round(value / MIB, 1) for key, value in taken.items()}
    report.figures["mixture"] = found
    saved = found["bnb_4bit"]["weights"] / found["bf16"]["weights"]
    report.check("mixture: bytes of weights over those in bf16", round(saved, 3), at_most=SAVED)


if __name__ == "__main__":
    main(measure, __doc__ or "")
