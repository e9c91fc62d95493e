"""Every law fails for the fault it is about, and holds for the healthy component beside it."""

from __future__ import annotations

import shutil
import time
from collections import deque
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, ClassVar

import pytest
import torch
from pydantic import Field

from gym_core import Artifact, Exporter, Quantizer
from gym_data import Source
from gym_deltasoup.kinds import Merger
from gym_deltasoup.merging.rule import MergeRule, Plan
from gym_optim.kinds import Scheduler
from gym_testkit import weights
from gym_testkit.distribution import Brought
from gym_testkit.laws import adapters, callbacks, exporters, mergers, package, quantizers, schedulers, sources
from gym_torch.config import EarlyStopping
from gym_torch.kinds import Adapter
from gym_torch.loop.callbacks.early_stopping import EarlyStop
from gym_torch.model.adapted import Full


@dataclass
class Numbers:
    """An array as small as one can be."""

    shape: tuple[int, ...]
    values: list[float] = field(default_factory=list)

    def flatten(self):
        return self

    def tolist(self):
        return self.values


def copied(artifact, into, change=lambda tensors: tensors):
    shutil.copytree(artifact.path, into)
    weights.write(into / "model.safetensors", change(weights.read(artifact.path)))
    return Artifact(into)


def scaled(by):
    return lambda tensors: {n: weights.Tensor(t.shape, [v * by for v in t.values]) for n, t in tensors.items()}


def arrays(path):
    return {name: Numbers(t.shape, t.list()) for name, t in weights.read(path).items()}


class Copies(Quantizer):
    """Keeps everything as it is."""

    def error_bound(self):
        return 1e-6

    def declared_bytes(self, shapes):
        return sum(4 * prod(shape) for shape in shapes.values())

    def build(self):
        return self

    def quantize(self, run, artifact, into):
        return copied(artifact, into)

    def restore(self, artifact):
        return arrays(artifact.path)


class SaysHalf(Copies):
    def declared_bytes(self, shapes):
        return super().declared_bytes(shapes) // 2


class Shrinks(Copies):
    def quantize(self, run, artifact, into):
        return copied(artifact, into, scaled(0.9))


class Flattens(Copies):
    def restore(self, artifact):
        return {name: Numbers((len(a.values),), a.values) for name, a in arrays(artifact.path).items()}


class Overwrites(Copies):
    def quantize(self, run, artifact, into):
        made = super().quantize(run, artifact, into)
        (artifact.path / "config.json").write_text("{}")
        return made


@pytest.mark.parametrize(
    ("cls", "law"),
    [
        (SaysHalf, quantizers.declared_size),
        (Shrinks, quantizers.error_bound),
        (Flattens, quantizers.odd_shapes),
        (Overwrites, quantizers.base_untouched),
    ],
)
def test_quantizer(bench, tmp_path, cls, law):
    from gym_testkit.bench import Bench

    law(Brought("quantizers", "copies", Copies), bench)
    (tmp_path / "other").mkdir()
    with pytest.raises(AssertionError):
        law(Brought("quantizers", "faulty", cls), Bench(tmp_path / "other"))


class Watcher(EarlyStopping):
    """Ends a run as the healthy one does, and keeps a state of its own."""

    forgets: ClassVar[str] = ""

    def build(self, **context):
        return Watching(self, **context)


class Watching(EarlyStop):
    def __init__(self, config, run):
        super().__init__(config, run)
        self.seen = deque(maxlen=2)

    def evaluated(self, progress, record):
        super().evaluated(progress, record)
        self.seen.append(record[self.name])

    def state_dict(self):
        return {} if self.config.forgets == "all" else super().state_dict() | {"seen": list(self.seen)}

    def load_state_dict(self, state):
        super().load_state_dict({"best": None, "misses": 0} | state)
        if self.config.forgets != "last":
            self.seen.extend(state.get("seen", ()))


class ForgetsAll(Watcher):
    forgets = "all"


class ForgetsTheLast(Watcher):
    forgets = "last"


@pytest.mark.parametrize(
    ("cls", "said"),
    [(ForgetsAll, "it asks for an end"), (ForgetsTheLast, "state_dict, seen")],
)
def test_callback(bench, tmp_path, cls, said):
    from gym_testkit.bench import Bench

    callbacks.goes_on(Brought("callbacks", "early_stopping", Watcher), bench)
    (tmp_path / "other").mkdir()
    with pytest.raises(AssertionError, match=f"stopped after step . of 6 and resumed, it differs: {said}\n"):
        callbacks.goes_on(Brought("callbacks", "early_stopping", cls), Bench(tmp_path / "other"))


class Mean(Merger):
    """The mean, which promises all of its laws."""

    def idempotent(self):
        return True

    def order_free(self):
        return True

    def translates(self):
        return True

    def scales(self):
        return True

    def build(self):
        return Averages(self)


class Averages(MergeRule):
    def __init__(self, merger):
        self.merger = merger

    def plan(self, updates, hostile):
        return Plan(self.merger.middle)


def middle(change):
    return lambda self, chunk: change(chunk)


class ClaimsRobust(Mean):
    middle = middle(lambda chunk: chunk.values.mean(0))

    def tolerates(self, inputs):
        return max(0, (inputs - 1) // 2)


class ClaimsHalf(ClaimsRobust):
    def tolerates(self, inputs):
        return inputs // 2


class First(Mean):
    middle = middle(lambda chunk: chunk.values[0])


class Doubles(Mean):
    middle = middle(lambda chunk: 2 * chunk.values.mean(0))


class Squares(Mean):
    middle = middle(lambda chunk: (chunk.values**2).mean(0))


class ByChunk(Mean):
    middle = middle(lambda chunk: chunk.values.mean(0) - chunk.values.mean())


class Consumes(Mean):
    middle = middle(lambda chunk: chunk.values.sub_(chunk.values.mean()).mean(0))


class Widens(Mean):
    middle = middle(
        lambda chunk: (chunk.values.half() if chunk.values.dtype == torch.float32 else chunk.values).mean(0)
    )


class Average(Mean):
    middle = middle(lambda chunk: chunk.values.mean(0))

    def sensitivity(self, inputs, hostile, clip):
        return 2 * clip / inputs


class ClaimsStill(Average):
    def sensitivity(self, inputs, hostile, clip):
        return clip / inputs


@pytest.mark.parametrize(
    ("cls", "law"),
    [
        (ClaimsRobust, mergers.bounded),
        (ClaimsHalf, mergers.tolerated),
        (First, mergers.order),
        (Doubles, mergers.equal_inputs),
        (Doubles, mergers.translation),
        (Squares, mergers.scale),
        (ByChunk, mergers.chunks),
        (Consumes, mergers.again),
        (Widens, mergers.precision),
        (ClaimsStill, mergers.sensitivity),
    ],
)
def test_merger(bench, cls, law):
    with pytest.raises(AssertionError):
        law(Brought("mergers", "faulty", cls), bench)


def test_mean_is_no_robust_merger_but_a_merger(bench):
    mean = Brought("mergers", "mean", Average)
    applied = [law.check for law in mergers.laws.laws if law.applies(mean)]
    assert mergers.bounded not in applied and len(applied) == len(mergers.laws.laws) - 1
    for law in applied:
        law(mean, bench)


class Sloppy(Exporter):
    """Writes straight into place, and rounds."""

    def build(self):
        return self

    def export(self, artifact, into):
        into.mkdir(exist_ok=True)
        weights.write(into / "model.safetensors", scaled(1.001)(weights.read(artifact.path)))
        return into

    def reload(self, path):
        return arrays(path)


@pytest.mark.parametrize("law", [exporters.reloads, exporters.atomic])
def test_exporter(bench, law):
    with pytest.raises(AssertionError):
        law(Brought("exporters", "sloppy", Sloppy), bench)


class Factors(Exporter):
    """Says that it can write adapters and models that score, and copies the files with weights that it finds."""

    artifacts: ClassVar[tuple[str, ...]] = ("model", "adapter")
    tasks: ClassVar[tuple[str, ...]] = ("causal-lm", "sequence-classification")

    def build(self):
        return self

    def export(self, artifact, into):
        into.mkdir()
        for file in artifact.path.glob("*model.safetensors"):
            shutil.copyfile(file, into / file.name)
        return into

    def reload(self, path):
        return arrays(path)


class Accepts(Factors):
    """Has the refusal taken out."""

    artifacts: ClassVar[tuple[str, ...]] = ("model",)

    def carries(self, artifact):
        pass


def test_an_exporter_that_copies_factors_or_drops_heads(bench):
    brought = Brought("exporters", "factors", Factors)
    exporters.reloads(brought, bench)
    for law in (exporters.merges, exporters.keeps_heads):
        assert {law.check: law for law in exporters.laws.laws}[law].applies(brought)
        with pytest.raises(AssertionError, match=r"names differ|the head of"):
            law(brought, bench)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        exporters.refuses(Brought("exporters", "accepts", Accepts), bench)


class Ramp(Scheduler):
    """Down to a tenth."""

    ends_at: ClassVar[float | None] = 0.0

    def build(self, total, warmup):
        return lambda step: (step + 1) / warmup if step < warmup else 1 - 0.9 * (step - warmup) / max(1, total - warmup)


class Jumpy(Ramp):
    """Above the peak."""

    def build(self, total, warmup):
        return lambda step: 1.5 if step == 3 else 0.5


class Remembers(Ramp):
    """Counts its calls."""

    def build(self, total, warmup):
        calls = []
        return lambda step: 1 / (1 + len(calls) + bool(calls.append(1)))


@pytest.mark.parametrize(
    ("cls", "law"),
    [
        (Ramp, schedulers.ends),
        (Jumpy, schedulers.bounded),
        (Jumpy, schedulers.starts),
        (Jumpy, schedulers.warms_up),
        (Remembers, schedulers.pure),
    ],
)
def test_scheduler(bench, cls, law):
    with pytest.raises(AssertionError):
        law(Brought("schedulers", "faulty", cls), bench)


def test_scheduler_that_is_healthy(bench):
    for law in (schedulers.bounded, schedulers.starts, schedulers.warms_up, schedulers.pure):
        law(Brought("schedulers", "ramp", Ramp), bench)


class Undocumented(Scheduler):
    floor: float = 0.0


class Wants(Scheduler):
    """Needs a path."""

    path: str
    """A path."""


class WantsByExample(Scheduler):
    """Needs a path, and shows one."""

    path: Annotated[str, Field(examples=["here"])]
    """A path."""


class Forgets(Scheduler):
    """Does not read what it wrote."""

    ratio: float = Field(0.1, gt=0.2, description="Below its own bound.")


class Moved(Scheduler):
    """Names an object that has moved."""

    oracle: ClassVar[str] = "gym_testkit.laws.package:no_such_oracle"


@pytest.mark.parametrize(
    ("cls", "law"),
    [
        (Moved, package.points_at_what_is_there),
        (Undocumented, package.class_documented),
        (Undocumented, package.fields_documented),
        (Wants, package.round_trips),
        (Forgets, package.round_trips),
    ],
)
def test_configuration(bench, cls, law):
    with pytest.raises((AssertionError, ValueError)):
        law(Brought("schedulers", "faulty", cls), bench)


def test_required_field_with_an_example_round_trips(bench):
    package.round_trips(Brought("schedulers", "wants", WantsByExample), bench)


class Lines(Source):
    """Lines of a file."""

    path: Annotated[str, Field(examples=["rows.jsonl"])]
    """The file."""

    def build(self):
        return self

    def rows(self):
        return ({"text": line} for line in self.text().splitlines())

    def text(self):
        return Path(self.path).read_text(encoding="utf-8")

    def fingerprint(self):
        return str(hash(self.text()))


class Once(Lines):
    def build(self):
        rows = list(super().rows())
        return SimpleNamespace(rows=lambda: (rows.pop() for _ in range(len(rows))), fingerprint=lambda: "rows")


class Sticky(Lines):
    def fingerprint(self):
        return self.path


class Timed(Lines):
    def fingerprint(self):
        return str(time.monotonic_ns())


class Empty(Lines):
    def rows(self):
        return iter(())


@pytest.mark.parametrize(
    ("cls", "law"),
    [
        (Once, sources.repeats),
        (Empty, sources.repeats),
        (Timed, sources.fingerprint_stays),
        (Sticky, sources.fingerprint_changes),
    ],
)
def test_source(bench, cls, law):
    law(Brought("sources", "lines", Lines), bench)
    with pytest.raises(AssertionError):
        law(Brought("sources", "faulty", cls), bench)


class Norms(Adapter):
    """Trains the norms."""

    times: ClassVar[float] = 1.0

    def build(self, **context):
        adapted = Full(self, context["model"], context["seed"], trained=lambda name: "norm" in name)
        for weight in adapted.model.parameters():
            if weight.requires_grad:
                weight.register_hook(lambda gradient: gradient * self.times)
        return adapted


class HalfNorms(Norms):
    """Their gradients are half of what they are."""

    times: ClassVar[float] = 0.5


def test_adapter(bench):
    adapters.slopes(Brought("adapters", "norms", Norms), bench)
    with pytest.raises(AssertionError, match="its gradient says"):
        adapters.slopes(Brought("adapters", "norms", HalfNorms), bench)
