"""The kernel for GPUs equals the one in torch, for every form: `nox -s gpu`. So far it has run in Triton's interpreter alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_deltas import coded, low_rank, whole

from gym_bitdelta.delta.header import Dense, LowRank
from gym_bitdelta.runtime.products import products
from gym_bitdelta.runtime.tenant import prepare

ENTRIES = [
    Dense(shape=(70, 130), code="signs", bits=3, scales="col"),
    Dense(shape=(70, 130), code="grid", bits=4, scales="group", group=32, zero_points=True),
    Dense(shape=(70, 130), code="ternary", scales="rank1"),
    Dense(shape=(70, 130), code="grid", bits=8, scales="row", rows=33),
    LowRank(shape=(70, 130), rank=5, leading=2, group=32),
]


@pytest.mark.gpu
@pytest.mark.parametrize("entry", ENTRIES)
def test_triton_equals_torch(entry):
    draw = low_rank if isinstance(entry, LowRank) else coded
    deltas = [whole({"w.weight": draw(entry, seed)}) for seed in range(3)]
    x, y = torch.randn(6, 5, 130), torch.randn(6, 5, 70)
    starts, rows = torch.tensor([0, 2, 3, 5]), torch.tensor([4, 1, 0, 2, 5])
    found = []
    for device, kernel in (("cpu", "torch"), ("cuda", "triton")):
        way, sums = products(kernel, device), y.clone().to(device)
        tenants = [prepare(delta, way) for delta in deltas]
        records = torch.from_numpy(np.stack([tenant.records["w.weight"] for tenant in tenants]))
        way.add(sums, x.to(device), [tenant.arena.to(device) for tenant in tenants], records, starts, rows)
        found.append(sums.cpu())
    assert (found[0] - found[1]).abs().max() < 1e-4
