"""Frozen layers below an adapter compute the same by oneDNN, each row as it is by itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gym_torch.kernels import onednn_linear


@pytest.mark.parametrize("bias", [True, False])
def test_value_and_gradient_are_those_of_float64_and_rows_do_not_depend_on_each_other(bias: bool) -> None:
    draws = torch.Generator().manual_seed(0)
    layer = nn.Linear(300, 70, bias=bias).requires_grad_(False)
    onednn_linear.speed_up(onednn_linear.frozen(layer))
    given = torch.randn(2, 33, 300, generator=draws, requires_grad=True)
    above = torch.randn(2, 33, 70, generator=draws)
    found = layer(given)
    (found * above).sum().backward()
    exact = given.detach().double().requires_grad_()
    wanted = nn.functional.linear(exact, layer.weight.double(), layer.bias.double() if bias else None)
    (wanted * above.double()).sum().backward()
    assert torch.allclose(found.double(), wanted, atol=1e-4)
    assert torch.allclose(given.grad.double(), exact.grad, atol=1e-4)
    assert torch.equal(layer(given[:, :5])[1], found[1, :5]), "a row is another one among other rows"
    assert layer(given[:0]).shape == (0, 33, 70)


def test_what_trains_or_is_in_few_bits_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8).bfloat16())
    assert onednn_linear.frozen(model) == [model[1]]
    onednn_linear.speed_up([model[1]])
    other = nn.Linear(8, 8).requires_grad_(False)
    other.forward = torch.zeros_like
    assert onednn_linear.frozen(other) == [], "what computes something else would compute a product again"
    model[1].weight.requires_grad_(True)
    model[1](torch.ones(9, 8)).sum().backward()
    assert model[1].weight.grad is not None, "a layer that trains again has no gradient"


def test_whoever_transforms_or_traces_a_layer_sees_products_of_torch() -> None:
    layer = nn.Linear(8, 8).requires_grad_(False)
    given, towards = torch.randn(2, 9, 8), torch.ones(2, 9, 8)
    expected = layer(given), torch.func.jvp(layer, (given,), (towards,))[1]
    onednn_linear.speed_up([layer])
    assert torch.allclose(torch.vmap(layer)(given), expected[0], atol=1e-6)
    assert torch.allclose(torch.func.jvp(layer, (given,), (towards,))[1], expected[1], atol=1e-6)
