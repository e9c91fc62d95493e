"""Robust rules that go by distances, where hostile inputs are as far away as a number of a weight may be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gym_deltasoup as soup
from gym_deltasoup import merge_vectors

RULES = {
    "geometric_median": soup.GeometricMedian(),
    "centered_clipping": soup.CenteredClipping(),
    "nnm geometric_median": soup.NNM(rule=soup.GeometricMedian()),
}
FAR = {
    "together": lambda draw, f: torch.ones(f, 64).double() * 1e11,
    "apart": lambda draw, f: torch.randn(f, 64, generator=draw).double() * 1e10,
    "one number": lambda draw, f: torch.cat([torch.full((f, 1), 9e11), torch.zeros(f, 63)], 1).double(),
}


def away(rule: str, honest: Tensor, hostile: Tensor) -> float:
    """Return how far the result is from the mean of the honest, in distances of the farthest of these."""
    values = torch.cat([hostile, honest])
    found = merge_vectors(RULES[rule], values, len(hostile)).vector
    return float((found - honest.mean(0)).norm() / (honest - honest.mean(0)).norm(dim=1).max())


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("inputs", "hostile"), [(3, 1), (5, 1), (7, 3), (20, 6), (20, 9), (101, 50)])
def test_how_far_hostile_inputs_are_moves_nothing(rule: str, far: str, inputs: int, hostile: int) -> None:
    """In more than half of the pairs there is a hostile input where it is three of ten: no scale may be that of all pairs."""
    for seed, scale in enumerate((1.0, 1e-2, 1e-4)):
        draw = torch.Generator().manual_seed(seed)
        honest = scale * (1 + 0.3 * torch.randn(inputs - hostile, 64, generator=draw).double())
        most = 2 * (inputs - hostile) / (inputs - 2 * hostile)  # Minsker 2015: of any median in a space with distances
        assert away(rule, honest, FAR[far](draw, hostile)) < most, scale


@pytest.mark.parametrize("rule", RULES)
def test_honest_inputs_that_are_equal_are_the_result(rule: str) -> None:
    values = torch.tensor([[1.0, 2.0]] * 3 + [[1e11, 0.0], [0.0, -3.0]], dtype=torch.float64)
    for order in ([0, 1, 2, 3, 4], [3, 0, 4, 1, 2]):
        found = merge_vectors(RULES[rule], values[order], 2).vector
        torch.testing.assert_close(found, values[0], rtol=1e-9, atol=1e-9)


def test_two_points_with_half_of_the_inputs_each_have_no_order() -> None:
    values = torch.tensor([[0.0, 0.0], [0.0, 0.0], [4.0, 2.0], [4.0, 2.0]])
    for order in ([0, 1, 2, 3], [2, 3, 0, 1], [0, 2, 1, 3]):
        found = merge_vectors(soup.GeometricMedian(), values[order], 0).vector
        torch.testing.assert_close(found, torch.tensor([2.0, 1.0]))
