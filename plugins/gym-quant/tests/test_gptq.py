"""GPTQ against the formula of its paper in float64, with the inverse of what is left taken anew for each column."""

from __future__ import annotations

import pytest
import torch

from gym_core import GymError
from gym_quant.config.stored_layout import Scheme
from gym_quant.post_training import gptq
from gym_quant.post_training.gptq import cholesky, rounded
from gym_quant.post_training.grid import Grid

ROWS, COLUMNS = 12, 32


def oracle(
    weight: torch.Tensor, moments: torch.Tensor, damp: float, order: list[int], bits: int, group: int
) -> torch.Tensor:
    """Return the rounded weight: eq. 2 of arXiv:2210.17323, one column at a time; scales of the weights as they were."""
    weight, moments = weight.double().clone(), moments.double()
    hessian = moments + damp * moments.diagonal().mean() * torch.eye(len(moments), dtype=torch.float64)
    half = (2**bits - 1) / 2
    size = group or COLUMNS
    scales = weight.view(ROWS, -1, size).abs().amax(-1) / half
    left = list(order)
    for column in order:
        inverse = torch.linalg.inv(hessian[left][:, left])
        here = left.index(column)
        scale = scales[:, column // size]
        steps = (weight[:, column] / scale).round().clamp(-(half + 0.5), half - 0.5)
        error = (weight[:, column] - steps * scale) / inverse[here, here]
        weight[:, column] = steps * scale
        others = [place for place in range(len(left)) if place != here]
        weight[:, [left[place] for place in others]] -= torch.outer(error, inverse[here, others])
        left.remove(column)
    return weight


@pytest.fixture
def problem() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, COLUMNS, generator=draw) @ torch.randn(COLUMNS, COLUMNS, generator=draw)
    return torch.randn(ROWS, COLUMNS, generator=draw), inputs.T @ inputs / len(inputs)


@pytest.mark.parametrize("group", [0, 16])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("bits", [3, 4])
def test_it_is_the_formula_of_the_paper(problem, group, ordered, bits, monkeypatch):
    monkeypatch.setattr(gptq, "BLOCK", 8)  # several blocks, whose updates of later ones are put off
    weight, moments = problem
    scheme = Scheme(bits, group)
    factor, order = cholesky(moments, 0.01, ordered)
    found = rounded(weight, factor, order, scheme, torch.float32, Grid.of(weight, scheme, torch.float32)).weight()
    torch.testing.assert_close(
        found.double(), oracle(weight, moments, 0.01, order.tolist(), bits, group), rtol=1e-4, atol=1e-5
    )
    assert order.tolist() == (
        torch.argsort(moments.diagonal(), descending=True).tolist() if ordered else [*range(COLUMNS)]
    )


@pytest.mark.parametrize("symmetric", [True, False])
def test_it_is_nearer_in_outputs_than_rounding_to_nearest(problem, symmetric):
    weight, moments = problem
    scheme = Scheme(3, 16, symmetric)
    grid = Grid.of(weight, scheme, torch.float32)

    def error(found: torch.Tensor) -> float:
        return float((((found - weight) @ moments) * (found - weight)).sum())

    nearest = error(grid.codes(weight).weight())
    for ordered, given in ((True, grid), (False, None)):
        factor, order = cholesky(moments, 0.01, ordered)
        assert error(rounded(weight, factor, order, scheme, torch.float32, given).weight()) < 0.6 * nearest


def test_inputs_that_are_never_there_are_rounded_to_nearest(problem):
    weight, moments = problem
    moments[3], moments[:, 3] = 0, 0
    grid = Grid.of(weight, Scheme(4, 16), torch.float32)
    factor, order = cholesky(moments, 0.01, True)
    found = rounded(weight, factor, order, grid.scheme, torch.float32, grid).weight()
    torch.testing.assert_close(found[:, 3], grid.codes(weight).weight()[:, 3])


def test_moments_that_are_none_are_refused():
    with pytest.raises(GymError, match="damp_percent"):
        cholesky(-torch.eye(4) + 2 * torch.ones(4, 4), 0.01, False, "up_proj")
