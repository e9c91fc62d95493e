"""Which samples a step holds follows from the seed, and from nothing else."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import numpy as np
import pytest
from gym_torch_bench import Samples, samples
from pydantic import ValidationError

from gym_core import DataError, RecipeError, Train
from gym_torch.sample_order import order
from gym_torch.source import Dataset


def ids(dataset: Dataset, start: int = 0, rank: int = 0, world: int = 1) -> list[list[str]]:
    steps = dataset.steps(start, rank, world)
    return [
        [sample.id for batch in step.batches[: len(step.batches) - step.spare] for sample in batch] for step in steps
    ]


def test_an_epoch_holds_every_sample_once_in_an_order_of_its_own() -> None:
    orders = [order(seed, epoch, 1000) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(each) == list(range(1000)) for each in orders)
    for number, left in enumerate(orders):
        assert all(np.mean(left == right) < 0.02 for right in [np.arange(1000), *orders[:number]])


def test_neighbours_in_one_epoch_are_no_neighbours_in_the_next() -> None:
    first, second = order(0, 0, 1000), order(0, 1, 1000)
    place = np.argsort(second)
    assert np.mean(np.abs(np.diff(place[first])) <= 2) < 0.02


def test_steps_hold_the_same_samples_however_they_are_cut() -> None:
    data = samples(37)
    wanted = [sorted(step) for step in ids(Dataset(data, Train(batch_size=16, epochs=3)))]
    assert [sorted(step) for step in ids(Dataset(data, Train(batch_size=1, accumulate=16, epochs=3)))] == wanted
    ranks = [ids(Dataset(data, Train(batch_size=8, accumulate=2, epochs=3)), 0, rank, 2) for rank in (0, 1)]
    assert [sorted(left + right) for left, right in zip(*ranks, strict=True)] == wanted


def test_every_sample_is_seen_epochs_times() -> None:
    seen = list(chain(*ids(Dataset(samples(10), Train(batch_size=4, epochs=3)))))
    assert sorted(seen) == sorted([f"row {index}" for index in range(10)] * 3)
    assert len(list(chain(*ids(Dataset(samples(10), Train(batch_size=4, epochs=1.5)))))) == 15
    assert len(ids(Dataset(samples(10), Train(batch_size=4, max_steps=7)))) == 7


@pytest.mark.parametrize("sizes", [{"batch_size": 4}, {"batch_tokens": 40}])
def test_the_largest_steps_are_those_of_the_most_tokens(sizes: dict[str, int]) -> None:
    dataset = Dataset(samples(37), Train(epochs=2.5, **sizes))
    tokens = [sum(len(each.tokens) for batch in step.batches for each in batch) for step in dataset.steps(0)]
    found = dataset.largest(5)
    assert list(found) == sorted(found)
    assert sorted(tokens[step] for step in found) == sorted(tokens)[-5:]
    assert list(dataset.largest(1000)) == list(range(dataset.total))


def test_the_last_step_of_an_epoch_may_end_with_it() -> None:
    train = Train(batch_size=1, accumulate=8, epochs=3)
    steps = ids(Dataset(samples(42), train, whole_epochs=True))
    assert [len(step) for step in steps] == [8, 8, 8, 8, 8, 2] * 3
    assert all(sorted(chain(*steps[first : first + 6])) == sorted(chain(*steps[:6])) for first in (6, 12))
    assert len(ids(Dataset(samples(42), train.model_copy(update={"epochs": 1.5}), whole_epochs=True))) == 9
    longer = Dataset(samples(42), train.model_copy(update={"max_steps": 20}), whole_epochs=True)
    assert ids(longer)[:18] == steps
    longer.extend(Dataset(samples(42), train, whole_epochs=True).state_dict(), 18)
    assert longer.total == 20
    with pytest.raises(DataError, match="do not end with an epoch"):
        Dataset(samples(42), Train(batch_tokens=64), whole_epochs=True)


@pytest.mark.parametrize("length", [{"epochs": 2}, {"max_steps": 6}])
@pytest.mark.parametrize("batch", [{"batch_size": 4}, {"batch_tokens": 50}])
def test_a_longer_run_that_stops_goes_on_with_the_samples_it_would_have_had(
    batch: dict[str, Any], length: dict[str, Any]
) -> None:
    data = samples(10, even=True)
    longer, again = (Dataset(data, Train(**batch, **length)) for _ in range(2))
    longer.extend(Dataset(data, Train(**batch)).state_dict(), 3)
    assert len(ids(longer)[2]) == 2, "the data cut the last step of the shorter run"
    state = json.loads(json.dumps(longer.state_dict()))
    again.extend(state, 5)
    again.load_state_dict(state, {})
    assert ids(again) == ids(longer) and again.state_dict() == longer.state_dict()


def test_steps_can_be_entered_anywhere() -> None:
    dataset = Dataset(samples(37), Train(batch_size=3, epochs=4))
    assert ids(dataset, 11) == ids(dataset)[11:]


def test_batches_of_tokens_keep_their_budget_and_lose_no_sample() -> None:
    train = Train(batch_tokens=64, accumulate=2, epochs=2)
    dataset = Dataset(samples(50), train)
    for step in dataset.steps(0):
        assert sum(len(sample.tokens) for batch in step.batches for sample in batch) <= 128
    assert sorted(chain(*ids(dataset))) == sorted([f"row {index}" for index in range(50)] * 2)


def test_a_sample_larger_than_the_budget_gets_a_batch_of_its_own() -> None:
    assert [len(step) for step in ids(Dataset(samples(5, even=True), Train(batch_tokens=8)))] == [1] * 5


def test_processes_without_a_batch_of_their_own_keep_step() -> None:
    dataset = Dataset(samples(5, even=True), Train(batch_size=1, accumulate=2, shuffle=False))
    last = [list(dataset.steps(0, rank, 2))[-1] for rank in (0, 1)]
    assert [(len(step.batches), step.spare) for step in last] == [(1, 0), (1, 1)]


def test_without_shuffling_samples_come_in_turn() -> None:
    assert ids(Dataset(samples(6, even=True), Train(batch_size=3, shuffle=False)))[1] == ["row 3", "row 4", "row 5"]


def test_no_samples_and_other_samples_are_errors() -> None:
    with pytest.raises(DataError, match="no sample"):
        Dataset(Samples([]), Train())
    before = Dataset(samples(10), Train(), fingerprint="a").state_dict()
    with pytest.raises(DataError, match="fingerprint was a, is b"):
        Dataset(samples(10), Train(), fingerprint="b").load_state_dict(before, {})


@pytest.mark.parametrize("length", [{"max_steps": 10**12}, {"max_steps": 10**30}, {"epochs": 1e12}, {"epochs": 1e300}])
@pytest.mark.parametrize("size", [{"batch_size": 4}, {"batch_tokens": 4}])
@pytest.mark.parametrize("whole_epochs", [False, True])
def test_a_run_without_an_end_is_refused_before_it_fills_memory(
    length: dict[str, Any], size: dict[str, int], whole_epochs: bool
) -> None:
    if whole_epochs and "batch_tokens" in size:
        return
    with pytest.raises(RecipeError, match="too many to plan") as caught:
        Dataset(samples(10), Train(**length, **size), whole_epochs=whole_epochs)
    assert caught.value.problems[0].key == f"train.{next(iter(length))}"


@pytest.mark.parametrize("key", ["batch_size", "batch_tokens", "accumulate", "seed"])
def test_numbers_that_no_machine_takes_are_refused(key: str) -> None:
    with pytest.raises(ValidationError, match="less than"):
        Train(**{key: 10**30})
    most = Train(batch_size=2**31 - 1, accumulate=2**31 - 1, seed=2**63 - 1, epochs=3)
    assert len(ids(Dataset(samples(10), most))) == 1
