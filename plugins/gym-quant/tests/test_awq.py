"""AWQ against the formulas of its paper in float64, over the inputs themselves."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from gym_quant.config.stored_layout import Scheme
from gym_quant.post_training import awq, clipping
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
def test_no_other_clipping_of_a_group_brings_the_outputs_nearer(problem, bits):
    inputs = problem[1].double() + 1  # so that groups see the same, and one can make up for another
    # Where both ends are clipped the zero point is half way between two codes, and rounding decides which.
    weight = 1.3 * torch.rand(ROWS, COLUMNS, generator=torch.Generator().manual_seed(4)) - 0.3
    found = clipping.best_clip(weight, Scheme(bits, GROUP, False), torch.float32, (inputs.T @ inputs / TOKENS).float())
    grouped = weight.double().view(ROWS, -1, GROUP)
    largest = grouped.abs().amax(-1)
    shrinks = [1 - step * clipping.SHRINK for step in range(clipping.SHRINKS)]

    def clipped(most):
        return nearest(grouped, bits, grouped.amin(-1).maximum(-most), grouped.amax(-1).minimum(most))

    def error(rounded):
        return (inputs @ (rounded - grouped).view(ROWS, -1).T).pow(2).sum(0)

    best = clipped(found.double())
    for shrink, group in product(shrinks, range(COLUMNS // GROUP)):
        other = best.clone()
        other[:, group] = clipped(largest * shrink)[:, group]
        assert (error(other) >= error(best) * (1 - 1e-3)).all()
    alone = torch.stack(
        [
            torch.einsum("tgn,rgn->trg", inputs.view(TOKENS, -1, GROUP), clipped(largest * shrink) - grouped)
            .pow(2)
            .sum(0)
            for shrink in shrinks
        ]
    ).argmin(0)
    each = clipped(largest * (1 - alone * clipping.SHRINK))
    assert error(best).sum() < 0.95 * error(each).sum(), "there was nothing to make up for"
    assert (found < largest.float()).any(), "there was nothing to clip"


@pytest.mark.parametrize("bits", [3, 4])
def test_clipped_rows_give_outputs_as_large_as_before(problem, bits):
    (weight, _), inputs = problem
    moments, scheme = inputs.T @ inputs / TOKENS, Scheme(bits, GROUP, False)
    codes = Grid.of(weight, scheme, torch.float32, 0.8 * weight.abs().view(ROWS, -1, GROUP).amax(-1)).codes(weight)
    wanted = inputs.double() @ weight.double().T

    def slopes(found):
        return ((inputs.double() @ found.weight().double().T) * wanted).sum(0) / wanted.square().sum(0)

    assert (slopes(codes) - 1).abs().max() > 0.05, "there was nothing to undo"
    torch.testing.assert_close(slopes(clipping.unshrunk(codes, weight, moments)), torch.ones(ROWS).double())
