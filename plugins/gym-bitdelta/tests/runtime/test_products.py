"""Products with packed deltas: every kernel equals float64, whatever the form of the record and the other rows are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_deltas import coded, low_rank, whole

from gym_bitdelta.delta import records
from gym_bitdelta.delta.header import Dense, LowRank
from gym_bitdelta.runtime import c_products
from gym_bitdelta.runtime.kernel_layout import empty
from gym_bitdelta.runtime.products import products
from gym_bitdelta.runtime.tenant import prepare
from gym_core import GymError
from gym_torch.kernels import native_code

KERNELS = [*(c_products.library().names if c_products.library() else ()), "torch"]
OUT, IN = 70, 130  #: neither a multiple of a tile nor of a word

FORMS = {
    "1 bit, tensor": Dense(shape=(OUT, IN), code="signs", scales="tensor"),
    "1 bit, row": Dense(shape=(OUT, IN), code="signs", scales="row"),
    "1 bit, rank1": Dense(shape=(OUT, IN), code="signs", scales="rank1"),
    "3 bits, col": Dense(shape=(OUT, IN), code="signs", bits=3, scales="col"),
    "2 bits, group": Dense(shape=(OUT, IN), code="signs", bits=2, scales="group", group=64),
    "int4, group, zero points": Dense(shape=(OUT, IN), code="grid", bits=4, scales="group", group=32, zero_points=True),
    "int8, row": Dense(shape=(OUT, IN), code="grid", bits=8, scales="row"),
    "int2, col, zero points": Dense(shape=(OUT, IN), code="grid", bits=2, scales="col", zero_points=True),
    "ternary, rank1, conv1d": Dense(shape=(IN, OUT), code="ternary", scales="rank1", transposed=True),
    "some rows": Dense(shape=(OUT, IN), code="grid", bits=3, scales="row", rows=33),
    "low rank": LowRank(shape=(OUT, IN), rank=5, leading=2, group=32),
    "low rank, one group": LowRank(shape=(OUT, IN), rank=40, leading=40),
    "long": Dense(shape=(OUT, 1100), code="signs", scales="group", group=96),
}


def drawn(name, seed=0):
    entry = FORMS[name]
    return (low_rank if isinstance(entry, LowRank) else coded)(entry, seed)


def dense(record):
    change = record.values().double()
    return change.T if getattr(record.entry, "transposed", False) else change


def segments(way, tenants, name="w.weight"):
    """Return arenas and records of tenants, as `Products.add` takes them."""
    return [each.arena for each in tenants], torch.from_numpy(np.stack([each.records[name] for each in tenants]))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("per", "dtype"), [(1, torch.float32), (5, torch.float32), (9, torch.bfloat16)])
def test_products_of_a_mixed_batch_equal_float64(kernel, form, per, dtype):
    way = products(kernel)
    bias = torch.randn(OUT, generator=torch.Generator().manual_seed(5))
    made = [{"w.weight": drawn(form, seed)} for seed in range(3)]
    if form != "some rows":
        made[1]["w.bias"] = records.raw(bias)
    tenants = [prepare(whole(each), way) for each in made]
    matrices = [dense(each["w.weight"]) for each in made]
    inputs = matrices[0].shape[1]
    draws = torch.Generator().manual_seed(9)
    x = torch.randn(6, per, inputs, generator=draws).to(dtype)
    y = torch.randn(6, per, OUT, generator=draws).to(dtype)
    tenants.insert(1, prepare(whole({"w.weight": drawn(form, 3)}), way))  # it has no row
    starts, rows = torch.tensor([0, 2, 2, 3, 5]), torch.tensor([4, 1, 0, 2, 5])  # row 3 is nobody's
    wanted = y.double()
    for number, matrix in enumerate(matrices):
        for row in ((4, 1), (0,), (2, 5))[number]:
            wanted[row] += x[row].double() @ matrix.T
            if number == 1 and "w.bias" in made[1]:
                wanted[row] += made[1]["w.bias"].values().double()
    arenas, table = segments(way, tenants)
    way.add(y, x, arenas, table, starts, rows)
    bound = 1e-5 if dtype == torch.float32 else float(wanted.abs().max()) * 2**-8
    assert (y.double() - wanted).abs().max() < bound


@pytest.mark.parametrize("kernel", KERNELS)
def test_neighbours_and_threads_change_no_bit(kernel):
    way, draws = products(kernel), torch.Generator().manual_seed(1)
    tenants = [prepare(whole({"w.weight": drawn("2 bits, group", seed)}), way) for seed in range(3)]
    x, y = torch.randn(6, 3, IN, generator=draws), torch.zeros(6, 3, OUT)
    arenas, table = segments(way, tenants)
    way.add(y, x, arenas, table, torch.tensor([0, 2, 4, 6]), torch.tensor([0, 5, 1, 4, 2, 3]))
    alone = torch.zeros(2, 3, OUT)
    way.add(alone, x[[1, 4]], arenas[1:2], table[1:2], torch.tensor([0, 2]), torch.tensor([0, 1]))
    assert torch.equal(alone, y[[1, 4]])
    single = torch.zeros(6, OUT)  # a token at a time, where kernels take several together
    for number, one in enumerate(x[[1, 4]].flatten(0, 1)):
        way.add(
            single[number].view(1, 1, -1),
            one.view(1, 1, -1),
            arenas[1:2],
            table[1:2],
            torch.tensor([0, 1]),
            torch.tensor([0]),
        )
    assert torch.equal(single, alone.flatten(0, 1))
    torch.set_num_threads(2)
    again = torch.zeros_like(y)
    way.add(again, x, arenas, table, torch.tensor([0, 2, 4, 6]), torch.tensor([0, 5, 1, 4, 2, 3]))
    torch.set_num_threads(1)
    assert torch.equal(again, y)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("form", FORMS)
def test_rows_of_a_matrix_are_those_of_the_change(kernel, form):
    way, record = products(kernel), drawn(form)
    tenant = prepare(whole({"w.weight": record}), way)
    chosen = torch.tensor([3, 0, 69, 3, 64])
    found = way.rows_of(tenant.arena, tenant.records["w.weight"].tolist(), chosen)
    assert torch.allclose(found.double(), dense(record)[chosen], atol=1e-7, rtol=1e-6)


def test_a_record_without_planes_or_rows_adds_nothing():
    for kernel in KERNELS:
        y = torch.ones(2, 1, OUT)
        arena, pair = torch.zeros(0, dtype=torch.int32), torch.from_numpy(np.stack([empty(), empty()]))[None]
        products(kernel).add(y, torch.ones(2, 1, IN), [arena], pair, torch.tensor([0, 2]), torch.tensor([0, 1]))
        products(kernel).add(
            y, torch.ones(2, 1, IN), [], pair[:0], torch.tensor([0]), torch.tensor([], dtype=torch.long)
        )
        assert torch.equal(y, torch.ones(2, 1, OUT))


def test_groups_that_no_word_holds_stay_as_they_are():
    record = coded(Dense(shape=(OUT, IN), code="signs", scales="group", group=48))
    tenant = prepare(whole({"w.weight": record}), products())
    assert "w.weight" in tenant.rest and not tenant.records


def test_without_a_compiler_torch_computes(monkeypatch, tmp_path):
    monkeypatch.setenv("GYM_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for kept in (c_products.library, native_code.library):
        kept.cache_clear()
    try:
        assert c_products.library() is None and products().name == "torch"
        with pytest.raises(GymError, match="no kernel `avx512`"):
            products("avx512")
    finally:
        monkeypatch.undo()
        for kept in (c_products.library, native_code.library):
            kept.cache_clear()
