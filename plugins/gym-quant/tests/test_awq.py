"""AWQ against the formulas of its paper in float64, over the inputs themselves."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from gym_quant.config.stored import Scheme
from gym_quant.post_training import awq
from gym_quant.post_training.grid import Grid

ROWS, COLUMNS, GROUP, TOKENS, STEPS = 10, 32, 16, 60, 20


def nearest(weight: torch.Tensor, bits: int, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return a weight `[rows, groups, n]` rounded within `[low, high]` of each group, with a zero point."""
    low, high = low.clamp(max=0)[..., None], high.clamp(min=0)[..., None]
    step = (high - low) / (2**bits - 1)
    zero = (-low / step).round()
    return ((weight / step + zero).round().clamp(0, 2**bits - 1) - zero) * step


def whole(weight: torch.Tensor, bits: int) -> torch.Tensor:
    grouped = weight.view(len(weight), -1, GROUP)
    return nearest(grouped, bits, grouped.amin(-1), grouped.amax(-1)).view_as(weight)


@pytest.fixture
def problem() -> tuple[list[torch.Tensor], torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    spread = torch.exp(1.5 * torch.randn(COLUMNS, generator=draw))
    inputs = torch.randn(TOKENS, COLUMNS, generator=draw) * spread
    return [torch.randn(rows, COLUMNS, generator=draw) for rows in (ROWS, 6)], inputs


@pytest.mark.parametrize("duo", [False, True])
@pytest.mark.parametrize("bits", [3, 4])
def test_the_scale_is_that_with_the_least_error_of_the_outputs(problem, bits, duo):
    weights, inputs = problem
    moments, schemes = inputs.T @ inputs / TOKENS, [Scheme(bits, GROUP, False)] * 2
    candidates = [*awq.scales(inputs.abs().mean(0), weights, schemes, STEPS, duo)]
    found = awq.best_scale(weights, schemes, torch.float32, moments, candidates)
    grouped = [each.double().abs().view(len(each), -1, GROUP) for each in weights]
    shares = torch.cat([(each / each.amax(-1, keepdim=True)).view(len(each), -1) for each in grouped]).mean(0)
    errors, scales = [], []
    for step, divided in product(range(STEPS), (False, True) if duo else (False,)):
        scale = inputs.double().abs().mean(0) ** (step / STEPS)
        if divided:
            scale = scale / (shares ** (1 - step / STEPS) + 1e-4)
        scale = scale / (scale.max() * scale.min()).sqrt()
        apart = [whole(each.double() * scale, bits) / scale - each.double() for each in weights]
        errors.append(sum(float((inputs.double() @ each.T).pow(2).sum()) for each in apart))
        scales.append(scale)
    best = scales[errors.index(min(errors))]
    torch.testing.assert_close(found.double(), best, rtol=1e-4, atol=1e-5)
    assert min(errors) < 0.8 * errors[0], "there was nothing to find"


@pytest.mark.parametrize("bits", [3, 4])
def test_each_group_is_clipped_where_its_outputs_are_nearest(problem, bits):
    inputs = problem[1]
    # Where both ends are clipped the zero point is half way between two codes, and rounding decides which.
    weight = 1.3 * torch.rand(ROWS, COLUMNS, generator=torch.Generator().manual_seed(4)) - 0.3
    found = awq.best_clip(weight, Scheme(bits, GROUP, False), torch.float32, inputs.T @ inputs / TOKENS)
    grouped = weight.double().view(ROWS, -1, GROUP)
    largest, seen = grouped.abs().amax(-1), inputs.double().view(TOKENS, -1, GROUP)
    errors = []
    for step in range(STEPS // 2):
        most = largest * (1 - step / STEPS)
        rounded = nearest(grouped, bits, grouped.amin(-1).maximum(-most), grouped.amax(-1).minimum(most))
        errors.append(torch.einsum("tgn,rgn->trg", seen, rounded - grouped).pow(2).sum(0))
    best = largest * (1 - torch.stack(errors).argmin(0) / STEPS)
    torch.testing.assert_close(found.double(), best, rtol=1e-5, atol=1e-6)
    assert (best < largest).any(), "there was nothing to clip"


@pytest.mark.parametrize("bits", [3, 4])
def test_clipped_rows_give_outputs_as_large_as_before(problem, bits):
    (weight, _), inputs = problem
    moments, scheme = inputs.T @ inputs / TOKENS, Scheme(bits, GROUP, False)
    codes = Grid.of(weight, scheme, torch.float32, 0.8 * weight.abs().view(ROWS, -1, GROUP).amax(-1)).codes(weight)
    wanted = inputs.double() @ weight.double().T

    def slopes(found):
        return ((inputs.double() @ found.weight().double().T) * wanted).sum(0) / wanted.square().sum(0)

    assert (slopes(codes) - 1).abs().max() > 0.05, "there was nothing to undo"
    torch.testing.assert_close(slopes(awq.unshrunk(codes, weight, moments)), torch.ones(ROWS).double())
