"""Linear layers compute the same whichever library multiplies."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from gym_torch.generation.cast_once import cast_once
from gym_torch.kernels import linear_products, onednn_linear
from gym_torch.kernels.linear_products import multiply
from gym_torch.patched_forward import called_alone

pytestmark = pytest.mark.skipif(not onednn_linear.functions(), reason="torch has no oneDNN here")


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Have the kernel work without a trial, also in small layers; it notes its products down."""
    calls: list[int] = []
    product = onednn_linear.few_rows
    monkeypatch.setattr(onednn_linear, "few_rows", lambda *given: calls.append(1) or product(*given))
    monkeypatch.setattr(linear_products, "NARROWEST", 1)
    monkeypatch.setattr(linear_products, "ROWS", 8)
    monkeypatch.setattr(linear_products.CHOICES, "always", True)
    yield calls


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_value_and_gradients_are_those_of_float64(used: list[int], bias: bool, trains: bool) -> None:
    layer = nn.Linear(300, 70, bias=bias).requires_grad_(trains)
    exact = copy.deepcopy(layer).double()
    multiply(layer)
    given, above = drawn(2, 33, 300).requires_grad_(), drawn(2, 33, 70)
    (layer(given) * above).sum().backward()
    wide = given.detach().double().requires_grad_()
    (exact(wide) * above.double()).sum().backward()
    assert len(used) == 2
    assert torch.allclose(layer(given).double(), exact(wide), atol=1e-4)
    pairs = zip((given, *layer.parameters()), (wide, *exact.parameters()), strict=True)
    for one, other in pairs:
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            assert one.grad.dtype == torch.float32
            assert torch.allclose(one.grad.double(), other.grad, atol=1e-4)


def test_few_numbers_of_rows_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library keeps compiled code for each, so a run whose steps all have another number would grow without end."""
    counts: set[int] = set()
    product = onednn_linear.few_rows
    monkeypatch.setattr(onednn_linear, "few_rows", lambda *given: counts.add(len(given[0])) or product(*given))
    layer = nn.Linear(8, 8)
    multiply(layer)
    for rows in range(64, 128):
        given = drawn(rows, 8).requires_grad_()
        layer(given).sum().backward()
        assert torch.allclose(layer.weight.grad, given.detach().sum(0).expand(8, 8), atol=1e-4)
        layer.weight.grad = None
    assert len(counts) == 8
    assert all(8 * rows < 9 * onednn_linear.even(rows) <= 9 * rows for rows in range(16, 5000))


def test_a_layer_says_and_keeps_what_it_did(used: list[int]) -> None:
    """A frozen layer that trains again has a gradient; a copy has its own weight; what is added in place changes no gradient."""
    layer = nn.Linear(8, 8).requires_grad_(False)
    multiply(layer)
    assert called_alone(layer), "a head would lose its fast path, a network its kernel"
    layer.weight.requires_grad_(True)
    out = layer(torch.ones(9, 8))
    out.clamp_(max=0.1)
    out.sum().backward()
    assert layer.weight.grad is not None
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.weight.zero_()
        other.bias.zero_()
        assert not other(torch.ones(9, 8)).any()
        assert layer(torch.ones(9, 8)).any()
    assert layer(drawn(0, 3, 8)).shape == (0, 3, 8)


def test_what_a_kernel_does_not_take_is_computed_by_torch(used: list[int]) -> None:
    layer, half = nn.Linear(8, 8), nn.Linear(8, 8).bfloat16()
    other = nn.Linear(8, 8)
    other.forward = torch.zeros_like
    multiply(nn.Sequential(layer, half, other))
    assert not other(torch.ones(9, 8)).any(), "what computes something else would compute a product again"
    layer(torch.ones(7, 8))  # few rows
    half(torch.ones(9, 8).bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(9, 8)).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="dtype"):
        layer(torch.ones(9, 8).bfloat16())
    assert not used


def test_whoever_transforms_or_traces_a_layer_sees_products_of_torch(used: list[int]) -> None:
    layer = nn.Linear(8, 8).requires_grad_(False)
    given, towards = drawn(2, 9, 8), torch.ones(2, 9, 8)
    expected = layer(given), torch.func.jvp(layer, (given,), (towards,))[1]
    multiply(layer)
    assert torch.allclose(torch.vmap(layer)(given), expected[0], atol=1e-6)
    assert torch.allclose(torch.func.jvp(layer, (given,), (towards,))[1], expected[1], atol=1e-6)
    assert not used


def test_copies_in_bf16_take_the_place_of_a_layer_and_give_it_back() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    model.device = torch.device("cpu")
    multiply(model)
    before = model[0].forward
    with torch.autocast("cpu", torch.bfloat16), cast_once(model):
        assert model[0].forward is not before
    assert model[0].forward is before
