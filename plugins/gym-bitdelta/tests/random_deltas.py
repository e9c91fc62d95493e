"""Deltas of random codes and scales: no model was trained, and every form of a record is there."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gym_bitdelta.delta import file, records
from gym_bitdelta.delta.header import Dense, LowRank

BASE = "0" * 64


def coded(entry: Dense, seed: int = 0) -> records.Record:
    """Return a record with codes; its numbers are about as large as those of a fine-tune."""
    draws = torch.Generator().manual_seed(seed)
    stack, rows, columns = entry.matrices
    most = 3 if entry.code == "ternary" else 2**entry.bits
    codes = torch.randint(0, most, (stack, rows, columns), generator=draws, dtype=torch.uint8)
    outer = (torch.rand(entry.planes, entry.blocks, generator=draws) + 0.5) * 0.02 / 2 ** (entry.bits - 1)
    inner = torch.rand(stack, columns, generator=draws) + 0.5 if entry.scales == "rank1" else None
    zeros = torch.randint(0, most, (entry.blocks,), generator=draws) if entry.zero_points else None
    chosen = None if entry.rows is None else torch.arange(entry.rows) * 2
    return records.dense(entry, codes, records.Scales(outer, inner), zeros, chosen)


def low_rank(entry: LowRank, seed: int = 0) -> records.Record:
    """Return a record of two factors."""
    draws = torch.Generator().manual_seed(seed)
    stack, *ends = entry.matrices
    codes = [torch.randint(0, 4, (stack, entry.rank, end), generator=draws, dtype=torch.uint8) for end in ends]
    scales = [(torch.rand(stack, entry.rank, -(-end // entry.group), generator=draws) + 0.5) * 0.1 for end in ends]
    return records.low_rank(entry, codes, scales)


def whole(found: Mapping[str, records.Record]) -> file.Delta:
    """Return a delta of these records."""
    return file.made(BASE, found, {"name": "test"}, {})


def of_model(model: torch.nn.Module, seed: int, form: str = "dense") -> file.Delta:
    """Return a delta that changes every weight of a model: matrices in 1 to 4 bits or low rank, the rest as it is."""
    found = {}
    kept = {id(weight): name for name, weight in model.named_parameters()}
    for number, (name, weight) in enumerate(model.named_parameters()):
        shape, key = tuple(weight.shape), seed * 1000 + number
        turned = type(model.get_submodule(name.rpartition(".")[0])).__name__ == "Conv1D"
        if kept[id(weight)] != name:
            continue
        if len(shape) == 1:
            draws = torch.Generator().manual_seed(key)
            found[name] = records.raw(torch.randn(shape, generator=draws) * 0.1)
        elif form == "low rank" and len(shape) == 2 and "embed" not in name:
            rank = 4
            found[name] = low_rank(LowRank(shape=shape, rank=rank, leading=2, group=32, transposed=turned), key)
        else:
            bits, scales = 1 + (number + seed) % 4, ("rank1", "row", "tensor")[number % 3]
            code = "signs" if number % 2 else "grid"
            found[name] = coded(Dense(shape=shape, code=code, bits=bits, scales=scales, transposed=turned), key)
    return whole(found)


@torch.no_grad()
def merged(model: torch.nn.Module, delta: file.Delta) -> torch.nn.Module:
    """Return the model with the changes of a delta added to its weights, in their precision."""
    weights = dict(model.named_parameters())
    for name, record in delta.records.items():
        weights[name] += record.values().to(weights[name].dtype)
    return model
