"""How samples are dealt out to batches."""

from __future__ import annotations

import time

import numpy as np
import pytest
from gym_torch_bench import samples
from hypothesis import given
from hypothesis import strategies as st

from gym_core import Train
from gym_torch.packing import PACKED, PADDED, Layout, bucket, fill
from gym_torch.source import Dataset, once

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=60).map(np.array)


@given(LENGTHS, st.integers(1, 400))
def test_full_rows_keep_their_budget_and_lose_no_sample(lengths: np.ndarray, budget: int) -> None:
    rows = fill(lengths, Train(batch_tokens=budget))
    assert sorted(np.concatenate(rows)) == list(range(len(lengths)))
    assert all(lengths[row].sum() <= budget or len(row) == 1 for row in rows)
    light = sorted(int(lengths[row].sum()) for row in rows)[:2]
    assert len(light) < 2 or sum(light) > budget  # or the two would be one


@given(LENGTHS, st.integers(1, 16))
def test_rows_of_a_number_of_samples_weigh_about_the_same(lengths: np.ndarray, size: int) -> None:
    rows = fill(lengths, Train(batch_size=size))
    assert sorted(np.concatenate(rows)) == list(range(len(lengths)))
    assert len(rows) == -(-len(lengths) // size)
    assert max(map(len, rows)) <= size
    weights = [int(lengths[row].sum()) for row in rows]
    assert weights == sorted(weights, reverse=True)


def test_even_samples_make_even_rows() -> None:
    lengths = np.array([100, 1, 50, 51, 99, 2])
    assert [int(lengths[row].sum()) for row in fill(lengths, Train(batch_size=2))] == [101, 101, 101]


def test_padded_batches_are_of_like_lengths_longest_first() -> None:
    lengths = samples(40).lengths
    found = [length for rows in bucket(lengths, Train(batch_size=8)) for length in lengths[rows]]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=lambda layout: layout.name)
def test_batches_of_tokens_keep_their_budget(layout: Layout) -> None:
    dataset = Dataset(samples(50), Train(batch_tokens=64, accumulate=2, epochs=2), layout=layout)
    for step in dataset.steps(0):
        assert all(layout.lay_out(batch, ()).tokens.numel() <= 64 for batch in step.batches)


def test_rows_are_nearly_full() -> None:
    lengths = np.random.default_rng(0).integers(20, 400, 2000)
    rows = fill(lengths, Train(batch_tokens=2048))
    assert lengths.sum() / (len(rows) * 2048) > 0.99


def test_an_evaluation_holds_everything_once() -> None:
    step = once(samples(11), Train(batch_size=4), PACKED)
    assert sorted(sample.id for batch in step.batches for sample in batch) == sorted(f"row {i}" for i in range(11))


def test_a_million_samples_are_planned_in_a_moment() -> None:
    class Many:
        lengths = np.random.default_rng(0).integers(20, 2000, 1_000_000)

        def __len__(self) -> int:
            return len(self.lengths)

    began = time.perf_counter()
    dataset = Dataset(Many(), Train(batch_tokens=16384))  # type: ignore[arg-type]
    assert time.perf_counter() - began < 5
    assert dataset.total == pytest.approx(Many.lengths.sum() / 16384, rel=0.1)
