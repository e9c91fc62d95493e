"""Memory and quality of every adapter with every optimizer, on the tiny model and on one of 30M parameters.

Takes what is installed, with default options. Memory is the peak that `gym plan` predicts for one batch of 1,024 tokens. Quality
is the loss on held-out tinyshakespeare after a few steps on it. Rates are tuned on the tiny model: for each optimizer when
everything trains and with LoRA, for each adapter with AdamW; a combination takes the one of its optimizer, times how much faster
its adapter learns than LoRA. The 30M model begins with a short training on other text and learns at a third of those rates;
its loss is taken for every adapter with AdamW and for every optimizer with `full` and `lora`. What cannot be combined is
refused by name, and the table says so. Without `--quick` the table and the plot in docs/choosing.md are written anew.
"""

from __future__ import annotations

import copy
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
import report
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from optim import DATA, fit, large_shape
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core import Adapter, GymError, Optimizer, Recipe, load_recipe, locate
from gym_core.discovery import entries
from gym_core.loading import load
from gym_data.tokenizer import Tokenizer
from gym_optim.config import LOMO, AdamW
from gym_optim.config.base import TorchOptimizer
from gym_torch import Transformers
from gym_torch.adapted import Begins, First, TakesPart, adapt
from gym_torch.backend import load_frozen
from gym_torch.batch import Batch, Piece, packed
from gym_torch.layout import PACKED
from gym_torch.logprobs import declared_head
from gym_torch.parameters import groups_of
from gym_torch.plan.batch import lengths_of, planned
from gym_torch.plan.memory import objective_of, predict
from gym_torch.plan.skeleton import skeleton
from gym_torch.policy import Policy

PAGE = Path(__file__).parents[1] / "docs" / "choosing.md"
PLOT = PAGE.parent / "images" / "choosing.png"
OTHER = DATA.parent / "wiki_demo.txt"  #: what the 30M model is trained on before
RATES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
STEPS, ROWS, LENGTH = 12, 4, 48  #: of a run on the tiny model; the larger one and the tuning take half the steps
HELD = 4  #: batches that are held out
PLANNED = 1024  #: tokens of the batch whose memory is predicted
BEFORE = 40  #: steps of the larger model on other text
CPU = torch.device("cpu")


Cell = dict[str, Any]  #: what is found of a combination


@dataclass(frozen=True, eq=False)
class Subject:
    """A model on the disk, and the text that it learns."""

    name: str
    path: Path
    tokens: np.ndarray  #: of tinyshakespeare
    steps: int
    rate: float = 1.0  #: its learning rate over that of the tiny model


def measure(out: report.Report, quick: bool) -> None:
    """Measure all combinations."""
    adapters, optimizers = components("adapters"), components("optimizers")
    if quick:
        adapters = {name: adapters[name] for name in ("full", "lora")}
        optimizers = {name: optimizers[name] for name in ("adamw", "lomo")}
    tiny = Subject("tiny", locate("tiny"), read(DATA, Tokenizer(locate("tiny"))), STEPS)
    rate = rates(tiny, adapters, optimizers)
    with tempfile.TemporaryDirectory() as folder:
        for subject in [tiny] if quick else [tiny, large(Path(folder))]:
            out.figures[subject.name] = found = {
                adapter: {name: look(subject, adapter, name, kind(), rate) for name, kind in optimizers.items()}
                for adapter in adapters
            }
            losses = [cell["loss"] for row in found.values() for cell in row.values() if "loss" in cell]
            broken = sum(not isfinite(loss) for loss in losses)
            out.check(f"{subject.name}: combinations that broke down", broken, at_most=0)
            out.check(f"{subject.name}: combinations that learnt", len(losses), at_least=len(adapters))
            if not quick:
                write(out.figures)


def components(kind: str) -> dict[str, Any]:
    """Return the components of a kind that run on this machine, by name."""
    found = {entry.name: load(entry) for entry in entries(kind)}
    bound = {name for name, each in found.items() if issubclass(each, TorchOptimizer) and each.device}
    return {name: each for name, each in found.items() if name not in bound}


def look(subject: Subject, adapter: str, name: str, optimizer: Optimizer, rate: Callable[[str, str], float]) -> Cell:
    """Return memory, trained parameters and, where it is taken, the loss of a combination; or why it is refused."""
    try:
        cell = memory(subject, adapter, optimizer)
        if subject.rate == 1.0 or name == "adamw" or adapter in ("full", "lora"):
            learning_rate = rate(adapter, name) * subject.rate
            cell |= {"rate": learning_rate, "loss": round(learn(subject, adapter, optimizer, learning_rate), 4)}
        return cell
    except GymError as error:
        return {"refused": str(error).splitlines()[0]}


def rates(
    tiny: Subject, adapters: dict[str, type[Adapter]], optimizers: dict[str, type[Optimizer]]
) -> Callable[[str, str], float]:
    """Return what says the rate of a combination."""

    @cache
    def best(adapter: str, optimizer: str) -> float:
        short = partial(learn, tiny, adapter, optimizers[optimizer](), steps=STEPS // 2)
        losses = {rate: short(rate) for rate in RATES}
        return min(losses, key=losses.__getitem__)

    def rate(adapter: str, optimizer: str) -> float:
        if adapter in ("full", "lora") or optimizer == "adamw":
            return best(adapter, optimizer)
        return best("lora", optimizer) * best(adapter, "adamw") / best("lora", "adamw")

    return rate


def recipe_of(subject: Subject, adapter: str, optimizer: Optimizer) -> Recipe:
    """Return the recipe of a combination."""
    sections = {"model": str(subject.path), "data": "none.jsonl", "algorithm": "sft", "adapter": adapter}
    return replace(load_recipe(sections | {"train": {"precision": "fp32"}}), optimizer=optimizer)


@cache
def rest(subject: Subject, adapter: str, passing: bool) -> tuple[int, list[dict[str, Any]]]:
    """Return the peak without state, where gradients stay or go as they come, and the groups of what trains."""
    recipe = recipe_of(subject, adapter, LOMO() if passing else AdamW())
    built = skeleton(recipe, subject.path, "fp32", CPU)
    batch = planned(objective_of(recipe, built.layout), lengths_of(PLANNED, PLANNED // 4))
    found = predict(recipe, built, batch).memory
    return found.peak - found.optimizer, built.groups


def memory(subject: Subject, adapter: str, optimizer: Optimizer) -> Cell:
    """Return the peak that is predicted, and how many parameters train."""
    groups = rest(subject, adapter, False)[1]
    held = optimizer.held_gradients(groups) if isinstance(optimizer, TorchOptimizer) else None
    peak = rest(subject, adapter, held is not None)[0] + optimizer.declared_bytes(groups) + (held or 0)
    trained = sum(prod(shape) for group in groups for _, shape in group["params"])
    return {"trained": trained, "peak_mib": round(peak / 2**20, 1)}


@cache
def base(subject: Subject) -> PreTrainedModel:
    """Return the model as a run would load it."""
    return load_frozen(Transformers(path=str(subject.path)), "fp32", PACKED).model.requires_grad_(True)


def learn(subject: Subject, adapter: str, optimizer: Optimizer, rate: float, steps: int | None = None) -> float:
    """Return the loss on what is held out after a run. Raises GymError where the combination is refused."""
    torch.manual_seed(0)
    adapted = adapt(copy.deepcopy(base(subject)), recipe_of(subject, adapter, optimizer))
    if isinstance(adapted, TakesPart):
        raise GymError("it has a part in every step, and the steps of this script do not tell it", key="adapter")
    model = adapted.model
    policy = Policy(model, head=declared_head(model)).train()
    cut = len(subject.tokens) * 19 // 20
    if isinstance(adapted, Begins):
        first = drawn(subject.tokens[:cut], 0)
        adapted.begin([First(first, lambda: -policy(first).sum())])
        policy.zero_grad()

    def loss(tokens: np.ndarray, number: int) -> Tensor:
        return -policy(drawn(tokens, number)).mean()

    def held(number: int) -> Tensor:
        policy.eval()
        return loss(subject.tokens[cut:], number)

    found = fit(
        groups_of(model),
        optimizer,
        rate,
        steps or subject.steps,
        partial(loss, subject.tokens[:cut]),
        [partial(held, number) for number in range(HELD)],
    )
    return found.loss


def drawn(tokens: np.ndarray, number: int) -> Batch:
    """Return pieces of text from places that follow from the number."""
    starts = np.random.default_rng(number).integers(len(tokens) - LENGTH, size=ROWS)
    trained = np.ones(LENGTH, dtype=np.bool_)
    return packed([Piece(f"{start}", tokens[start : start + LENGTH], trained) for start in starts])


def read(file: Path, tokenizer: Tokenizer | None = None) -> np.ndarray:
    """Return the first 300,000 characters of a text as tokens, or as bytes."""
    text = file.read_text(encoding="utf-8")[:300_000]
    return np.array(tokenizer.encode(text) if tokenizer else list(text.encode()), dtype=np.int32)


def large(folder: Path) -> Subject:
    """Write a model of 30M parameters that has read some other text, byte by byte."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(large_shape()).save_pretrained(folder)
    policy = Policy(load_frozen(Transformers(path=str(folder)), "fp32", PACKED).model.requires_grad_(True)).train()
    text = read(OTHER)

    def loss(number: int) -> Tensor:
        return -policy(drawn(text, number)).mean()

    fit(groups_of(policy.model), AdamW(), 1e-3, BEFORE, loss, [partial(loss, BEFORE)])
    policy.model.save_pretrained(folder)
    return Subject("30M", folder, read(DATA), STEPS // 2, rate=1 / 3)


def write(figures: dict[str, dict[str, dict[str, Cell]]]) -> None:
    """Write tables and plot into the documents."""
    parts = []
    for name, rows in figures.items():
        optimizers = list(next(iter(rows.values())))
        parts += [f"### {name}", "", f"| adapter | trained | {' | '.join(f'`{each}`' for each in optimizers)} |"]
        parts += [f"|---|---:|{'---:|' * len(optimizers)}"]
        for adapter, cells in rows.items():
            trained = next((f"{cell['trained']:,}" for cell in cells.values() if "trained" in cell), "-")
            parts.append(f"| `{adapter}` | {trained} | {' | '.join(shown(cells[each]) for each in optimizers)} |")
        parts.append("")
    text = PAGE.read_text(encoding="utf-8")
    block = re.compile(r"(<!-- measured: benchmarks/choosing.py -->\n).*?(<!-- end -->)", re.DOTALL)
    PAGE.write_text(block.sub(lambda found: found[1] + "\n".join(["", *parts]) + found[2], text), encoding="utf-8")
    plot(figures)


def shown(cell: Cell) -> str:
    """Write a combination as memory in MiB and loss."""
    if "refused" in cell:
        return "-"
    return f"{cell['peak_mib']:.0f}" + (f" / {cell['loss']:.2f}" if "loss" in cell else "")


def plot(figures: dict[str, dict[str, dict[str, Cell]]]) -> None:
    """Draw loss over memory: a point for each combination, with those that nothing beats in both joined."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for place, (name, rows) in enumerate(figures.items(), start=1):
        axes = figure.add_subplot(1, len(figures), place)
        points = sorted(
            (cell["peak_mib"], cell["loss"], f"{adapter} + {optimizer}")
            for adapter, cells in rows.items()
            for optimizer, cell in cells.items()
            if "loss" in cell
        )
        for family, color in (("full", "tab:red"), ("", "tab:blue")):
            some = [point for point in points if point[2].startswith("full +") == bool(family)]
            axes.scatter([p[0] for p in some], [p[1] for p in some], s=12, c=color, label=family or "adapters")
        front = [point for number, point in enumerate(points) if all(point[1] < other[1] for other in points[:number])]
        axes.plot([p[0] for p in front], [p[1] for p in front], color="0.6", linewidth=0.8)
        for x, y, label in front:
            axes.annotate(label, (x, y), fontsize=6, xytext=(3, 3), textcoords="offset points")
        axes.set(title=name, xlabel="predicted peak, MiB", ylabel="held-out loss", xscale="log")
        axes.legend()
    FigureCanvasAgg(figure).print_png(PLOT)


if __name__ == "__main__":
    report.main(measure, __doc__ or "")
