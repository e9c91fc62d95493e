"""Steps over windows of samples follow from the seed and the windows, and go on where a run was stopped, bit for bit."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gym_torch_bench import (
    Crash,
    Event,
    Memory,
    Prepared,
    Samples,
    make_run,
    metrics,
    same,
    samples,
    state,
    train,
    weights,
)

from gym_core import DataError, Interrupted, PluginError, RecipeError, Train
from gym_torch.contribution import dataset
from gym_torch.packing import PACKED
from gym_torch.streaming import Streamed

SIZES = (7, 1, 5)  #: samples of the windows of a pass


@dataclass(frozen=True)
class Made:
    examples: Samples
    number: int
    epoch: int
    last: bool
    state: Mapping[str, Any]


class Stream:
    """Windows of these sizes, pass after pass; samples are named by pass and place."""

    def __init__(self, data: Samples) -> None:
        self.data = data

    def windows(self, state: Mapping[str, Any] | None = None) -> Iterator[Made]:
        for number in count(state["number"] if state else 0):
            epoch, within = divmod(number, len(SIZES))
            start = sum(SIZES[:within])
            examples = Samples(self.data.samples[start : start + SIZES[within]])
            yield Made(examples, number, epoch, within + 1 == len(SIZES), {"number": number})


class Streaming(Memory):
    """The same samples, window by window."""

    def streams(self) -> bool:
        return True

    def build(self, **context: Any) -> Prepared:
        prepared = super().build(**context)
        prepared.stream = Stream(prepared.train)  # type: ignore[attr-defined]
        return prepared


def source(fingerprint: str = "", whole_epochs: bool = False, **options: Any) -> Streamed:
    data = samples(sum(SIZES))
    return Streamed(Stream(data), Train(**{"max_steps": 12, **options}), fingerprint, PACKED, whole_epochs)


def ids(made: Streamed, start: int = 0, rank: int = 0, world: int = 1) -> list[list[str]]:
    return [
        [sample.id for batch in step.batches[: len(step.batches) - step.spare] for sample in batch]
        for step in made.steps(start, rank, world)
    ]


def test_every_pass_holds_every_sample_once_and_the_seed_decides_the_order() -> None:
    seen = list(chain(*ids(source(batch_size=4, max_steps=13))))
    names = [f"row {number}" for number in range(13)]
    passes = [seen[first : first + 13] for first in range(0, 52, 13)]
    assert [sorted(each) for each in passes] == [sorted(names)] * 4
    assert len({tuple(each) for each in passes}) == 4, "each window has an order of its own"
    assert seen == list(chain(*ids(source(batch_size=4, max_steps=13))))
    assert seen != list(chain(*ids(source(batch_size=4, max_steps=13, seed=1))))
    assert list(chain(*ids(source(batch_size=13, max_steps=1, shuffle=False)))) == names


def test_steps_hold_the_same_samples_however_they_are_cut_and_processes_share_them() -> None:
    wanted = [sorted(step) for step in ids(source(batch_size=6))]
    assert [sorted(step) for step in ids(source(batch_size=2, accumulate=3))] == wanted
    first, second = (ids(source(batch_size=3, accumulate=2), 0, rank, 2) for rank in (0, 1))
    for left, right, step in zip(first, second, wanted, strict=True):
        assert left and right and not set(left) & set(right) and sorted(left + right) == step


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_tokens": 60}, {"batch_size": 5, "whole_epochs": True}])
def test_steps_go_on_from_what_a_checkpoint_holds(options: dict[str, Any]) -> None:
    whole = ids(source(**options))
    for taken in range(1, 12):
        stopped, again = source(**options), source(**options)
        steps = stopped.steps(0)
        for _ in range(taken):
            next(steps)
        held = json.loads(json.dumps(stopped.state_dict()))
        again.load_state_dict(held, {})
        assert ids(again, taken) == whole[taken:]
        again.load_state_dict(held, {})
        assert ids(again, taken - 1) == whole[taken - 1 :], "the step may have been looked at and not taken"


def test_the_last_step_of_a_pass_may_end_with_it() -> None:
    steps = source(batch_size=5, whole_epochs=True)
    assert [len(step) for step in ids(steps)] == [5, 5, 3] * 4
    assert [step.epoch for step in steps.steps(0)] == [float(number // 3) for number in range(1, 13)]


def test_steps_of_so_many_tokens_keep_their_budget_and_lose_no_sample() -> None:
    made = source(batch_tokens=64, max_steps=20)
    steps = list(made.steps(0))
    assert all(sum(len(each.tokens) for batch in step.batches for each in batch) <= 64 for step in steps)
    seen = [each.id for step in steps for batch in step.batches for each in batch]
    assert sorted(seen[:13]) == sorted(f"row {number}" for number in range(13)) and len(seen) > 26


def test_other_options_fewer_steps_and_no_end_are_errors() -> None:
    before = source("a").state_dict()
    with pytest.raises(DataError, match="fingerprint was a, is b"):
        source("b").load_state_dict(before, {})
    with pytest.raises(DataError, match="had 12 steps"):
        source("a", max_steps=11).load_state_dict(before, {})
    with pytest.raises(RecipeError, match="no end"):
        source(max_steps=None)


SETTINGS: dict[str, Any] = {"save_every": 3, "log_every": 2, "eval_every": 5, "keep_last": 9}


@pytest.mark.parametrize("signalled", [True, False])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(model_path: Path, tmp_path: Path, signalled: bool) -> None:
    data = Streaming(held_out=6, rows=sum(SIZES))
    whole, output = tmp_path / "whole", tmp_path / "stopped"
    train(make_run(model_path, whole, data, **SETTINGS))
    event = Event(step=7, signal=signal.SIGTERM) if signalled else Event(step=8)
    with pytest.raises(Interrupted if signalled else Crash):
        train(make_run(model_path, output, data, sections={"callbacks": (event,)}, **SETTINGS))
    train(make_run(model_path, output, data, **SETTINGS))
    assert same(weights(output), weights(whole)) and metrics(output) == metrics(whole)
    assert same(state(output, 10)[0], state(whole, 10)[0])


def test_who_asks_for_all_samples_at_once_is_refused(model_path: Path, tmp_path: Path) -> None:
    run = make_run(model_path, tmp_path, Streaming())
    with pytest.raises(RecipeError, match="window by window"):
        run.recipe.algorithm.check_recipe(run.recipe)

    model = SimpleNamespace(layout=PACKED)
    parts = SimpleNamespace(run=run, config=run.recipe.algorithm, model=model, data=run.recipe.data)
    with pytest.raises(PluginError, match="asks for all samples at once"):
        dataset(parts)  # type: ignore[arg-type]
