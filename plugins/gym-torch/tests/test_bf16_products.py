"""Sums of products in bf16: as near to float64 as what comes out allows, whatever the shapes, and each row by itself."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from gym_torch.kernels import bf16_products, linear_products
from gym_torch.kernels.bf16_products import WIDE, summed
from gym_torch.kernels.linear_products import multiply

pytestmark = pytest.mark.skipif(bf16_products.kernel() is None, reason="no such products here")
HALF = torch.bfloat16
#: Relative: numbers are rounded once, by at most half of the last of their 8 digits.
NEAR = 4e-3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def near(found: Tensor, exact: Tensor) -> bool:
    return bool((found.double() - exact).norm() <= NEAR * exact.norm())


@pytest.mark.parametrize("rows", [1, 5, 6, 203])
@pytest.mark.parametrize("columns", [1, 63, 64, 120, 520])
@pytest.mark.parametrize("depth", [1, 2, 33, 512, 2100])
def test_a_sum_is_that_of_its_definition(rows: int, columns: int, depth: int) -> None:
    """With a factor as it stands and transposed, in bf16 and in fp32, a bias, and a product of another depth that is scaled."""
    left, small, bias = drawn(rows, depth).to(HALF), drawn(rows, 3).to(HALF), drawn(columns).to(HALF)
    one, other = drawn(depth, columns).to(HALF), drawn(columns, 3).T
    whole = left.double() @ one.double()
    scaled = 1.7 * small.double() @ other.to(HALF).double()
    for factor in (one, one.float(), one.T.contiguous().T, one.float().T.contiguous().T):
        assert near(summed([left], [factor]), whole)
        assert near(summed([left], [factor], 0.5, bias), 0.5 * whole + bias.double())
        assert near(summed([small, left], [other, factor], 1.7, bias), scaled + whole + bias.double())


@pytest.mark.parametrize("depth", [301, 2100])
def test_a_row_depends_on_nothing_beside_it(depth: int) -> None:
    """Also where sums are kept between parts, by each thread its own."""
    left, right = drawn(1000, depth).to(HALF), drawn(depth, 700)
    whole, threads = summed([left], [right]), torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert torch.equal(summed([left], [right]), whole)
    finally:
        torch.set_num_threads(threads)
    for begin, end in ((0, 1), (17, 900), (997, 1000)):
        assert torch.equal(summed([left[begin:end]], [right]), whole[begin:end])
    left[7] = float("nan")
    found = summed([left], [right])
    assert found[7].isnan().all()
    found[7] = whole[7]
    assert torch.equal(found, whole)


def test_factors_may_be_parts_of_others() -> None:
    left, right = drawn(40, 100).to(HALF)[:, 10:43], drawn(90, 120)[20:53, 5:110]
    assert near(summed([left], [right]), left.double() @ right.to(HALF).double())
    apart, even = drawn(40, 66).to(HALF)[:, ::2], drawn(40, 100).to(HALF)[:, 10:42]
    assert near(summed([apart], [right]), apart.double() @ right.to(HALF).double())
    assert near(summed([even], [right[:32]]), even.double() @ right[:32].to(HALF).double())
    assert summed([left[:0]], [right]).shape == (0, 105)
    many = [left] * 4, [right] * 4
    assert near(summed(*many), 4 * left.double() @ right.to(HALF).double())


def test_without_data_there_are_shapes() -> None:
    with FakeTensorMode():
        found = summed([torch.empty(5, 8, dtype=HALF)], [torch.empty(8, 3)])
    assert (found.shape, found.dtype) == ((5, 3), HALF)


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_as_near_to_float64_as_with_torch(monkeypatch: pytest.MonkeyPatch, bias: bool, trains: bool) -> None:
    monkeypatch.setattr(linear_products, "NARROWEST", 1)
    monkeypatch.setattr(linear_products, "ROWS", 8)
    monkeypatch.setattr(linear_products.CHOICES, "always", True)
    layer = nn.Linear(3 * WIDE + 1, 70, bias=bias).requires_grad_(trains)
    given, above = drawn(2, 33, layer.in_features), drawn(2, 33, 70)
    own, exact = copy.deepcopy(layer), copy.deepcopy(layer).double()
    multiply(own)
    called, _ = [], bf16_products.functions()
    kernel = bf16_products.kernel()
    monkeypatch.setattr(bf16_products, "kernel", lambda: called.append(1) or kernel)

    def passed(how: nn.Module, dtype: torch.dtype, rounded: bool) -> list[Tensor]:
        leaf = given.to(dtype, copy=True).requires_grad_()
        with torch.autocast("cpu", HALF, enabled=rounded):
            out = how(leaf)
        (out.to(dtype) * above.to(dtype)).sum().backward()
        return [out.detach(), leaf.grad, *(weight.grad for weight in how.parameters() if trains)]

    mine, torchs = passed(own, torch.float32, True), passed(layer, torch.float32, True)
    wide = passed(exact, torch.float64, False)
    assert len(called) == 2
    for one, other, true in zip(mine, torchs, wide, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert (one - true).norm() <= 1.2 * (other - true).norm()
