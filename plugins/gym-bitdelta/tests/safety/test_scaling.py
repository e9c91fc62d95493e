"""A delta times a number: the very delta at 1, nothing at 0, in proportion between, for every way of coding."""

from __future__ import annotations

import pytest
import torch

from gym_bitdelta.delta import file, records
from gym_bitdelta.delta.header import Dense
from gym_bitdelta.fit import low_rank_factors
from gym_bitdelta.fit.low_rank_factors import Ranked
from gym_bitdelta.safety.scaling import scaled

CODINGS = [("signs", 2, False), ("grid", 4, False), ("grid", 2, True), ("ternary", 1, False)]


@pytest.fixture
def delta() -> file.Delta:
    draws = torch.Generator().manual_seed(0)
    found = {"norm": records.raw(torch.randn(7, generator=draws)), "same": records.zero((3, 3))}
    found["exact"] = records.raw(torch.randn(5, generator=draws), exact=True)
    for code, bits, zeros in CODINGS:
        entry = Dense(shape=(6, 10), code=code, bits=bits, scales="row", zero_points=zeros)
        most = 3 if code == "ternary" else 2**bits
        codes = torch.randint(0, most, (1, 6, 10), generator=draws, dtype=torch.uint8)
        scales = records.Scales(torch.rand(entry.planes, 6, generator=draws))
        found[f"{code}-{bits}-{zeros}"] = records.dense(entry, codes, scales, torch.ones(6) if zeros else None)
    factors = low_rank_factors.of_product(torch.randn(1, 6, 2, generator=draws), torch.randn(1, 2, 10, generator=draws))
    found["factors"] = low_rank_factors.encode(factors, (6, 10), Ranked())
    return file.made("0" * 64, found, {}, {})


def test_a_scaled_delta_changes_weights_in_proportion(delta, tmp_path):
    assert scaled(delta, 1.0) is delta
    for scale in (0.0, 0.25, 0.7):
        found = scaled(delta, scale)
        file.write(tmp_path / file.NAME, found)
        again = file.read(tmp_path / file.NAME)
        for name, record in delta.records.items():
            assert torch.allclose(again.records[name].values(), record.values() * scale, rtol=1e-6), name
            if scale == 0:
                weight = torch.randn(record.entry.shape)
                assert torch.equal(weight + found.records[name].values(), weight)
