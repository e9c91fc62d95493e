"""Memory of every adapter with every optimizer, on the tiny model and on one of 30M parameters, and what the tiny one learns.

Takes what is installed, with default options and ranks. Memory is the peak that `gym plan` predicts for one batch of 1,024
tokens. What is learnt is the loss on held-out tinyshakespeare after a few steps on it, from a model that has read other text
before. Each combination finds its learning rate by itself: it goes up and down by half decades until neither side is better.
The 30M model, which would take too long for that, is not trained: a loss at a rate that does not suit says nothing. What cannot
be combined is refused by name, and the tables say so. Without `--quick` the tables and the plot in docs/choosing.md are
written anew.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from math import isfinite, prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import report
import torch
from choosing_page import Cell, Row, write
from optim import DATA, fit, large_shape
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from workers import workers

from gym_core import GymError, Recipe, load_recipe
from gym_core.discovery import entries
from gym_core.loading import load
from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_optim.config import LOMO, AdamW
from gym_optim.config.base import OptimizerConfig
from gym_optim.kinds import Optimizer
from gym_plan.memory import objective_of, predict
from gym_plan.skeleton import skeleton
from gym_plan.synthetic_examples import lengths_of, planned
from gym_torch import Transformers
from gym_torch.batch import Batch, Piece, packed
from gym_torch.kinds import Adapter, part
from gym_torch.loop.checks import check_gradients_stay
from gym_torch.model.adapted import adapt
from gym_torch.model.loading import load_frozen
from gym_torch.model.log_probs import declared_head
from gym_torch.model.parameter_groups import groups_of
from gym_torch.packing import PACKED
from gym_torch.policy import Policy
from gym_torch.trained_part import FirstStepBatch

OTHER = DATA.parent / "wiki_demo.txt"  #: what a model has read before
BEFORE = 200  #: steps of that
ROWS, LENGTH = 4, 48
HELD = 4  #: batches that are held out
PLANNED = 1024  #: tokens of the batch whose memory is predicted
USUAL, LEAST, MOST = -5, -16, 12  #: half decades of the learning rate where a search begins, and where it must not end
OPTIONS: dict[str, dict[str, Any]] = {
    "llama_pro": {"blocks": 1},
    "trainable_tokens": {"tokens": list(range(64, 123))},  # letters, in both vocabularies
}
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Subject:
    """A model on the disk, and the text that it learns."""

    name: str
    path: Path
    tokens: np.ndarray  #: of tinyshakespeare
    steps: int = 0  #: none where memory alone is predicted
    before: float = 0.0  #: the loss that it begins with


def measure(out: report.Report, quick: bool) -> None:
    """Measure all combinations."""
    adapters, optimizers = components("adapters"), components("optimizers")
    if quick:
        adapters = {name: adapters[name] for name in ("full", "lora")}
        optimizers = {name: optimizers[name] for name in ("adamw", "lomo")}
    with TemporaryDirectory() as folder, workers() as pool:

        def explore(subject: Subject, starts: dict[str, Row]) -> dict[str, Row]:
            rows = pool.map(partial(row, subject, optimizers), starts, starts.values())
            return dict(zip(starts, rows, strict=True))

        subject = tiny(Path(folder))
        full = explore(subject, {"full": {}})["full"]
        found = {"full": full} | explore(subject, {name: full for name in adapters if name != "full"})
        summarize(out, subject, found)
        if not quick:
            subject = large(Path(folder))
            out.figures[subject.name] = {"rows": explore(subject, found)}
            write(out.figures)


def summarize(out: report.Report, subject: Subject, rows: dict[str, Row]) -> None:
    """Report what was found of a model."""
    out.figures[subject.name] = {"before": subject.before, "rows": rows}
    cells = [cell for found in rows.values() for cell in found.values() if "loss" in cell]
    broken = sum(not isfinite(cell["loss"]) for cell in cells)
    out.check(f"{subject.name}: combinations that broke down", broken, at_most=0)
    idle = sum(cell["loss"] >= subject.before for cell in cells)
    out.check(f"{subject.name}: of {len(cells)}, those that learnt nothing", idle, at_most=0)
    ends = sum(cell["half_decades"] in (LEAST, MOST) for cell in cells)
    out.check(f"{subject.name}: of {len(cells)}, those whose best rate is the last that was tried", ends, at_most=0)


def components(kind: str) -> dict[str, Any]:
    """Return the components of a kind that run on this machine, by name."""
    found = {entry.name: load(entry) for entry in entries(kind)}
    bound = {name for name, each in found.items() if issubclass(each, OptimizerConfig) and each.device}
    return {name: each for name, each in found.items() if name not in bound}


def row(subject: Subject, optimizers: dict[str, type[Optimizer]], adapter: str, starts: Row) -> Row:
    """Return what is found of an adapter with every optimizer; learning rates begin where `starts` ended."""
    began = time.perf_counter()
    found: Row = {}
    for name, kind in sorted(optimizers.items(), key=lambda item: item[0] != "adamw"):
        if "refused" in starts.get(name, {}) and not subject.steps:
            found[name] = starts[name]
            continue
        optimizer = kind()
        start = halves(starts, name) + halves(found, "adamw") - halves(starts, "adamw")
        try:
            found[name] = memory(subject, adapter, optimizer)
            if subject.steps:
                loss = cache(partial(learn, subject, adapter, optimizer))
                best = climbed(loss, start)
                found[name] |= {"half_decades": best, "loss": round(loss(best), 4)}
        except GymError as error:
            found[name] = {"refused": str(error).splitlines()[0]}
    said = {"model": subject.name, "adapter": adapter, "seconds": round(time.perf_counter() - began), "found": found}
    print(json.dumps(said), file=sys.stderr, flush=True)
    return found


def halves(found: Row, name: str) -> int:
    """Return the half decades of the learning rate of an optimizer where they were found, or the usual ones."""
    half_decades: int = found.get(name, {}).get("half_decades", USUAL)
    return half_decades


def climbed(loss: Callable[[int], float], at: int) -> int:
    """Return the learning rate, in half decades, beside which neither neighbour is better; downwards from where runs break."""
    at = min(max(at, LEAST + 1), MOST - 1)
    while LEAST < at < MOST and (best := min((at - 1, at, at + 1), key=loss)) != at:
        at = best
    return at


def recipe_of(subject: Subject, adapter: str, optimizer: Optimizer) -> Recipe:
    """Return the recipe of a combination."""
    chosen = {"name": adapter, **OPTIONS.get(adapter, {})}
    sections = {"model": str(subject.path), "data": "none.jsonl", "algorithm": "sft", "adapter": chosen}
    return replace(load_recipe(sections | {"train": {"precision": "fp32"}}), optimizer=optimizer)


@cache
def rest(subject: Subject, adapter: str, passing: bool) -> tuple[int, list[dict[str, Any]]]:
    """Return the peak without state, where gradients stay or go as they come, and the groups of what trains."""
    recipe = recipe_of(subject, adapter, LOMO() if passing else AdamW())
    built = skeleton(recipe, "fp32", CPU)
    batch = planned(objective_of(recipe, built.layout), lengths_of(PLANNED, PLANNED // 4))
    found = predict(recipe, built, batch).memory
    return found.peak - found.optimizer, built.groups


def memory(subject: Subject, adapter: str, optimizer: Optimizer) -> Cell:
    """Return the peak that is predicted, and how many parameters train."""
    groups = rest(subject, adapter, False)[1]
    held = held_gradients(subject, adapter, optimizer)
    peak = rest(subject, adapter, held is not None)[0] + optimizer.declared_bytes(groups) + (held or 0)
    trained = sum(prod(shape) for group in groups for _, shape in group["params"])
    return {"trained": trained, "peak_mib": round(peak / 2**20, 1)}


def held_gradients(subject: Subject, adapter: str, optimizer: Optimizer) -> int | None:
    """Return the bytes of gradients that an optimizer holds at a time; None where all stay until a step."""
    groups = rest(subject, adapter, False)[1]
    return None if optimizer.keeps_gradients() else optimizer.gradient_bytes(groups)


@lru_cache(maxsize=1)
def base(subject: Subject) -> PreTrainedModel:
    """Return the model as a run would load it."""
    return load_frozen(Transformers(path=str(subject.path)), "fp32", PACKED).model.requires_grad_(True)


def learn(subject: Subject, adapter: str, optimizer: Optimizer, half_decades: int) -> float:
    """Return the loss on what is held out after a run. Raises GymError where the combination is refused."""
    torch.manual_seed(0)
    recipe = recipe_of(subject, adapter, optimizer)
    adapted = adapt(copy.deepcopy(base(subject)), recipe)
    model = adapted.model
    policy = Policy(model, head=declared_head(model)).train()
    training, held = cut(subject.tokens)
    first = drawn(training, 0)
    adapted.initialize([FirstStepBatch(first, lambda: -policy(first).sum())])
    policy.zero_grad()
    kind = part(recipe, Adapter)
    if kind and kind.needs_gradients:
        check_gradients_stay(held_gradients(subject, adapter, optimizer) is not None, False)

    def loss(number: int) -> Tensor:
        found: Tensor = -policy(drawn(training, number)).mean()
        return found + adapted.penalty()

    def stepped(step: int) -> None:
        adapted.after_step(step, subject.steps)

    rate = 10.0 ** (half_decades / 2)
    return fit(groups_of(model), optimizer, rate, subject.steps, loss, held_out(policy, held), stepped).loss


def held_out(policy: Policy, tokens: np.ndarray) -> list[Callable[[], Tensor]]:
    """Return what computes the loss of each batch that is held out."""

    def loss(number: int) -> Tensor:
        policy.eval()
        return -policy(drawn(tokens, number)).mean()

    return [partial(loss, number) for number in range(HELD)]


def cut(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what is learnt and what is held out."""
    at = len(tokens) * 19 // 20
    return tokens[:at], tokens[at:]


def drawn(tokens: np.ndarray, number: int) -> Batch:
    """Return pieces of text from places that follow from the number."""
    starts = np.random.default_rng(number).integers(len(tokens) - LENGTH, size=ROWS)
    trained = np.ones(LENGTH, dtype=np.bool_)
    return packed([Piece(f"{start}", tokens[start : start + LENGTH], trained) for start in starts])


def read(file: Path, tokenizer: Tokenizer | None = None) -> np.ndarray:
    """Return the first 300,000 characters of a text as tokens, or as bytes."""
    text = file.read_text(encoding="utf-8")[:300_000]
    return np.array(tokenizer.encode(text) if tokenizer else list(text.encode()), dtype=np.int32)


def tiny(folder: Path) -> Subject:
    """Return the model that comes with Gym, which reads with its own tokenizer."""
    tokenizer = Tokenizer(locate("tiny"))
    model = load_frozen(Transformers(path=str(locate("tiny"))), "fp32", PACKED).model
    return begun("tiny", model, folder, read(OTHER, tokenizer), read(DATA, tokenizer), steps=12)


def large(folder: Path) -> Subject:
    """Return a model of 30M parameters, which is not trained."""
    AutoModelForCausalLM.from_config(large_shape()).save_pretrained(folder / "30M")
    return Subject("30M", folder / "30M", read(DATA))


def begun(
    name: str, model: PreTrainedModel, folder: Path, other: np.ndarray, tokens: np.ndarray, steps: int
) -> Subject:
    """Return a model, written into a folder, that has read other text."""
    policy = Policy(model.requires_grad_(True), head=declared_head(model)).train()

    def loss(number: int) -> Tensor:
        return -policy(drawn(other, number)).mean()

    before = fit(groups_of(model), AdamW(), 1e-3, BEFORE, loss, held_out(policy, cut(tokens)[1])).loss
    model.save_pretrained(folder / name)
    return Subject(name, folder / name, tokens, steps, before=round(before, 4))


if __name__ == "__main__":
    report.main(measure, __doc__ or "")
