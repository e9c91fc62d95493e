"""What a run improves is what it shows, keeps the best of and stops for, whatever it is called and whichever way is better."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gym_torch_bench import Counting, Memory, furthest, make_run, metrics, train
from gym_torch_two import in_two
from safetensors.torch import load_file

from gym_core.ranks import Ranks
from gym_testkit.distribution import Brought
from gym_torch import FSDP, EarlyStopping
from gym_torch.contribution import Contribution, Parts
from gym_torch.loop.job import Job
from gym_torch.observer import gain
from gym_torch.source import Dataset, Step

SETTINGS: dict[str, Any] = {"max_steps": 6, "eval_every": 1, "keep_best": True, "keep_last": 1, "log_every": 2}


class Likely(Counting):
    """Next-token prediction, known by how likely tokens are."""

    measure: ClassVar[str] = "likelihood"
    better: ClassVar[str] = "higher"


def hill(parts: Parts[Any, Any, Any]) -> Contribution:
    """Is measured by something of its own, which is best in the middle; and says something in every other step."""
    held_out = parts.data.validation or ()

    def height(job: Job) -> Mapping[str, float] | None:
        step = job.progress.step
        return None if step == 2 else {"likelihood": 10.0 - abs(step - 3), "samples": float(len(held_out))}

    source = Halves(parts.data.train, parts.train, parts.data.fingerprint, parts.layout)
    return Contribution(parts.objective, source, height if held_out else None)


class Halves(Dataset):
    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step]:
        for number, step in enumerate(super().steps(start, rank, world), start):
            yield replace(step, metrics={"odd": float(number)} if number % 2 else {})


def fog(parts: Parts[Any, Any, Any]) -> Contribution:
    """Says no number up to step 2, and from step 4 on."""
    there = {3: 1.0}
    return replace(hill(parts), evaluation=lambda job: {"likelihood": there.get(job.progress.step, math.nan)})


class Foggy(Likely):
    """Measured by `fog`."""

    contribution: ClassVar[str] = "test_evaluation:fog"


def slope(parts: Parts[Any, Any, Any]) -> Contribution:
    """Becomes worse in every step."""
    return replace(
        hill(parts),
        evaluation=lambda job: {"likelihood": 4.0 - job.progress.step, "samples": len(parts.data.validation or ())},
    )


class Falling(Likely):
    """Measured by `slope`."""

    contribution: ClassVar[str] = "test_evaluation:slope"


class Climbing(Likely):
    """Measured by `hill`."""

    contribution: ClassVar[str] = "test_evaluation:hill"


def timeless(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "tokens_per_second"}


def test_gain_is_what_is_better() -> None:
    assert gain(1.0, 3.0, "lower") == 2.0 == gain(3.0, 1.0, "higher")
    assert gain(5.0, None, "higher") == gain(5.0, None, "lower") == float("inf")
    assert gain(math.nan, None, "lower") == gain(math.nan, 1.0, "higher") == -math.inf


def test_what_is_no_number_is_never_the_best(model_path: Path, tmp_path: Path) -> None:
    for patience, steps, why in ((2, 2, "eval_likelihood was no number in"), (3, 6, "has not improved on 1.0000 for")):
        output, stop = tmp_path / str(steps), {"callbacks": (EarlyStopping(patience=patience),)}
        train(make_run(model_path, output, Memory(held_out=6), Foggy(), stop, **SETTINGS))
        record = json.loads((output / "run.json").read_text())["training"]
        assert record["steps"] == steps and why in record["stopped"]
    assert record["best"] == {"step": 3, "eval_likelihood": 1.0}


def test_what_the_algorithm_improves_is_followed_everywhere(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(make_run(model_path, tmp_path, Memory(held_out=6), Likely(), plot=True, **SETTINGS))
    found = {line["step"]: line["eval_likelihood"] for line in metrics(tmp_path) if "eval_likelihood" in line}
    best = max(found, key=lambda step: found[step])
    record = json.loads((tmp_path / "run.json").read_text())["training"]
    assert record["best"] == {"step": best, "eval_likelihood": found[best]}
    assert record["first_likelihood"] < record["likelihood"] and record["eval_likelihood"] == found[6]
    figures = [f"{record[name]:.4f}" for name in ("first_likelihood", "likelihood", "eval_likelihood")]
    assert "likelihood {} -> {}, held out {}\n".format(*figures) in capsys.readouterr().err
    for name in ("loss", "training_loss", "likelihood", "training_likelihood"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    logged = [json.loads(line) for line in (tmp_path / "trainer_log.jsonl").read_text().splitlines()]
    assert {"loss", "likelihood"} <= next(line for line in logged if "loss" in line).keys()
    assert [line["eval_likelihood"] for line in logged if "eval_likelihood" in line] == list(found.values())


def test_an_evaluation_of_ones_own_is_kept_and_stopped_by(model_path: Path, tmp_path: Path) -> None:
    stop = {"callbacks": (EarlyStopping(patience=2),)}
    train(make_run(model_path, tmp_path, Memory(held_out=6), Climbing(), stop, **SETTINGS))
    lines = metrics(tmp_path)
    assert [(line["step"], line["eval_likelihood"]) for line in lines if "eval_likelihood" in line] == [
        (1, 8.0), (3, 10.0), (4, 9.0), (5, 8.0)
    ]  # fmt: skip
    record = json.loads((tmp_path / "run.json").read_text())["training"]
    assert record["best"] == {"step": 3, "eval_likelihood": 10.0} and record["eval_samples"] == 6
    assert record["stopped"].startswith("eval_likelihood has not improved on 10.0000")
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-00000003", "step-00000005"}


def test_an_evaluation_before_the_first_step_changes_nothing_and_is_never_the_best(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SETTINGS | {"max_steps": 3}
    for output, asked in (("without", False), ("with", True)):
        stop = {"callbacks": (EarlyStopping(patience=2),)}
        run = make_run(
            model_path, tmp_path / output, Memory(held_out=6), Falling(), stop, **settings, eval_on_start=asked
        )
        train(run)
    said = capsys.readouterr().err
    first, *later = [timeless(line) for line in metrics(tmp_path / "with")]
    assert first == {"step": 0, "epoch": 0.0, "eval_likelihood": 4.0, "eval_samples": 6.0}
    assert later == [timeless(line) for line in metrics(tmp_path / "without")]
    assert "step 0/3  eval_likelihood 4.0000\n" in said
    record = json.loads((tmp_path / "with" / "run.json").read_text())["training"]
    assert record["best"] == {"step": 1, "eval_likelihood": 3.0} and "3.0000 for 2" in record["stopped"]


def test_what_is_said_in_some_steps_is_averaged_over_those(model_path: Path, tmp_path: Path) -> None:
    train(make_run(model_path, tmp_path, algorithm=Climbing(), max_steps=6, log_every=3))
    assert [line.get("odd") for line in metrics(tmp_path)] == [1.0, 4.0]


def best_of(model: Path, output: Path, adapter: str | None, ranks: Ranks | None = None) -> None:
    """Carry out a run that keeps the weights of an early step: its later ones are worse."""
    sections = {"adapter": adapter and Brought.named("adapters", adapter).sample(), "distributed": FSDP()}
    settings = SETTINGS | {"load_best_model_at_end": True, "learning_rate": 0.3, "accumulate": 2, "batch_size": 2}
    run = make_run(model, output, Memory(held_out=4), sections=sections, **settings)
    run.ranks = ranks or run.ranks
    train(run)


def member(ranks: Ranks, rank: int, model: Path, root: Path, adapters: Sequence[str | None]) -> None:
    """Be one of two processes that each hold a part of the model."""
    for adapter in adapters:
        best_of(model, root / f"{adapter}-{rank}", adapter, ranks)


def test_the_best_weights_of_a_run_in_shards_are_those_of_one_process(model_path: Path, tmp_path: Path) -> None:
    adapters = None, "lora"
    in_two(tmp_path, member, model_path, tmp_path, adapters)
    for adapter in adapters:
        best_of(model_path, tmp_path / f"{adapter}", adapter)
        assert json.loads((tmp_path / f"{adapter}" / "run.json").read_text())["training"]["best"]["step"] < 6
        found, wanted = (
            load_file(next((tmp_path / name / "model").glob("*.safetensors")))
            for name in (f"{adapter}-0", f"{adapter}")
        )
        assert found.keys() == wanted.keys() and furthest(found, wanted) < 1e-3
