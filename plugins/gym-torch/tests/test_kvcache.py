"""The cache of rows that come and go, against a list of rows."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import DynamicCache

from gym_torch.generation.kv_cache import ROOM, RowCache, fill

HEADS, DIM, LAYERS = 2, 3, 2


def entering(count: int, width: int) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(LAYERS):
        cache.update(torch.randn(count, HEADS, width, DIM), torch.randn(count, HEADS, width, DIM), layer)
    return cache


@pytest.mark.parametrize("seed", range(5))
def test_rows_keep_their_columns_through_any_history(seed: int) -> None:
    source = random.Random(seed)
    torch.manual_seed(seed)
    cache, rows = RowCache(), []  # rows[i][layer] is (keys, values), each [heads, length, dim]
    for _ in range(40):
        new = entering(source.randint(1, 3), source.randint(1, 2 * ROOM))
        index = torch.tensor([source.randrange(new.layers[0].keys.shape[0]) for _ in range(source.randint(1, 4))])
        cache.append(new, index)
        rows += [[(layer.keys[number], layer.values[number]) for layer in new.layers] for number in index]
        for _ in range(source.choice([0, 1, ROOM + 1])):
            step = [[torch.randn(len(rows), HEADS, 1, DIM) for _ in range(2)] for _ in range(LAYERS)]
            for number, pair in enumerate(step):
                cache.update(*pair, number)
            rows = [
                [tuple(torch.cat([old, part[row]], 1) for old, part in zip(rows[row][layer], step[layer], strict=True))
                 for layer in range(LAYERS)]
                for row in range(len(rows))
            ]  # fmt: skip
        kept = fill([row for row in range(len(rows)) if source.random() < 0.6])
        rows = [rows[row] for row in kept]
        cache.keep(kept, max((row[0][0].shape[1] for row in rows), default=0))
        for number, layer in enumerate(cache.layers):
            assert layer.keys.shape[:3:2] == (len(rows), max((row[0][0].shape[1] for row in rows), default=0))
            assert layer.keys.isfinite().all() and layer.values.isfinite().all()
            for row, held in enumerate(rows):
                keys, values = held[number]
                assert torch.equal(layer.keys[row, :, layer.keys.shape[2] - keys.shape[1] :], keys)
                assert torch.equal(layer.values[row, :, layer.keys.shape[2] - keys.shape[1] :], values)


def test_few_rows_move() -> None:
    assert fill([0, 1, 2]) == [0, 1, 2]
    assert fill([1, 2, 5]) == [5, 1, 2]
    assert fill([]) == []


def test_a_decoding_step_copies_nothing() -> None:
    cache = RowCache()
    cache.append(entering(3, 5), torch.arange(3))
    buffer = cache.layers[0].keys.data_ptr()
    for _ in range(ROOM):
        for layer in range(LAYERS):
            cache.update(torch.zeros(3, HEADS, 1, DIM), torch.zeros(3, HEADS, 1, DIM), layer)
        assert cache.layers[0].keys.data_ptr() == buffer
    cache.keep(fill([0, 1]), 5 + ROOM)
    assert cache.layers[0].keys.data_ptr() == buffer
