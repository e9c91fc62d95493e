"""The nearest kin of AdamW: where they are it, and their formulas where they are not."""

from __future__ import annotations

import pytest
import torch
from optim_bench import adamw, close, follow, gradients, random, state_bytes, weight
from schedulefree import AdamWScheduleFree
from torch import nn

from gym_optim import SOAP, AdamMini, AdamW8bit, ScheduleFreeAdamW
from gym_optim.blockwise_quantization import codebook, load_moment, quantize_moment
from gym_optim.config import AdamW


@pytest.mark.proves("adamw")
def test_adamw_is_its_formula() -> None:
    grads, parameter = gradients(3, 4, steps=6), weight(3, 4)
    value, mean, square = parameter.detach().clone(), torch.zeros(3, 4).double(), torch.zeros(3, 4).double()
    for step, gradient in enumerate(grads, start=1):
        mean, square = 0.8 * mean + 0.2 * gradient, 0.9 * square + 0.1 * gradient**2
        size = (square / (1 - 0.9**step)).sqrt() + 0.5
        value = (1 - 0.01 * 0.3) * value - 0.01 * mean / (1 - 0.8**step) / size
    options = AdamW(beta1=0.8, beta2=0.9, epsilon=0.5, weight_decay=0.3)
    close(follow(options.build(parameters=[parameter], learning_rate=0.01), parameter, grads), value)


@pytest.mark.proves("adam_mini")
def test_adam_mini_of_blocks_of_one_number_is_adamw() -> None:
    grads, parameter = gradients(7, 1, steps=20), weight(7, 1)
    expected = adamw(parameter.detach(), grads, 0.01, decay=0.1)
    close(follow(AdamMini([parameter], lr=0.01, weight_decay=0.1), parameter, grads), expected, 1e-7)


@pytest.mark.proves("adam_mini")
@pytest.mark.parametrize(("head_dim", "count"), [(None, 8), (4, 2), (8, 1)])
def test_adam_mini_has_one_second_moment_a_block(head_dim: int | None, count: int) -> None:
    grads, parameter = gradients(8, 3, steps=5), weight(8, 3)
    expected = parameter.detach().clone().view(count, -1)
    mean, square = torch.zeros_like(expected), torch.zeros(count, 1, dtype=torch.float64)
    for step, gradient in enumerate(grads, start=1):
        block = gradient.view(count, -1)
        mean = 0.9 * mean + 0.1 * block
        square = 0.999 * square + 0.001 * (block**2).mean(1, keepdim=True)
        expected = expected - 0.01 * mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
    group = {"params": [parameter]} | ({"head_dim": head_dim} if head_dim else {})
    optimizer = AdamMini([group], lr=0.01)
    close(follow(optimizer, parameter, grads), expected.view(8, 3))
    assert optimizer.state[parameter]["exp_avg_sq"].numel() == count


@pytest.mark.proves("adam_mini")
def test_adam_mini_runs_with_the_heads_of_qwen3_4b() -> None:
    """Width 2560 and 32 heads of 128: width x width / heads would be 204,800, which does not divide 4096 x 2560."""
    parameter = nn.Parameter(torch.zeros(4096, 2560))
    optimizer = AdamMini([{"params": [parameter], "role": "query_key", "head_dim": 128}], lr=1e-3)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert optimizer.state[parameter]["exp_avg_sq"].shape == (32,)
    with pytest.raises(ValueError, match="no heads of 3"):
        follow(AdamMini([{"params": [one := weight(8, 3)], "head_dim": 3}]), one, [random(8, 3)])


@pytest.mark.proves("adamw_8bit")
def test_eight_bits_end_where_thirty_two_do() -> None:
    """A parabola, with gradients as noisy as those of batches."""
    curvature, goal = torch.linspace(0.1, 1.0, 4096).view(64, 64), random(64, 64, seed=1).float()

    def loss(kind: type[torch.optim.Optimizer]) -> float:
        parameter = nn.Parameter(torch.zeros(64, 64))
        optimizer = kind([parameter], lr=0.02, weight_decay=0.0)
        for step in range(300):
            optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / 300)
            slope = curvature * (parameter.detach() - goal) / 2048
            parameter.grad = slope + 1e-3 * random(64, 64, seed=1000 + step).float()
            optimizer.step()
        if kind is AdamW8bit:
            assert state_bytes(optimizer) <= 2.1 * 4096
        return (curvature * (parameter.detach() - goal) ** 2).mean().item()

    assert loss(AdamW8bit) == pytest.approx(loss(torch.optim.AdamW), rel=0.01)


@pytest.mark.proves("adamw_8bit")
@pytest.mark.parametrize("signed", [True, False])
def test_eight_bit_codes_are_near_and_ordered(signed: bool) -> None:
    points = codebook(signed, torch.device("cpu"), torch.float64)
    assert points.numel() == 256 and torch.equal(points, points.unique())
    assert (0.0 in points.tolist()) == signed
    value = random(3, 400) if signed else random(3, 400) ** 2
    state = quantize_moment("m", value, signed)
    found = load_moment(state, "m", value, signed)
    decade = value.abs() > 0.1 * value.abs().max()
    assert ((found - value).abs() / value.abs())[decade].max() < 0.07
    assert state["m_codes"].shape == (3, 400) and state["m_scales"].shape == (3, 2)


@pytest.mark.proves("adamw_8bit")
def test_eight_bit_moments_survive_what_is_far_smaller_than_its_block() -> None:
    """A second moment of zero would make the update of the small numbers up to 31 times too long."""
    parameter = nn.Parameter(torch.zeros(64, 64))
    optimizer = AdamW8bit([parameter], lr=1e-3)
    gradient = torch.full((64, 64), 1e-5)
    gradient[0, 0] = 1.0
    for _ in range(200):
        parameter.grad = gradient.clone()
        optimizer.step()
    assert parameter.detach().abs().max() <= 1.01 * 200e-3


def schedule_free(start: torch.Tensor, grads: list[torch.Tensor], rates: list[float], decay: float) -> torch.Tensor:
    """Algorithm 1 with x, y and z written out; gradients are given, so that y only matters for the decay."""
    x, z, square, total, top = start.clone(), start.clone(), torch.zeros_like(start), 0.0, 0.0
    for step, (gradient, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        y = 0.1 * z + 0.9 * x
        square = 0.999 * square + 0.001 * gradient**2
        z = z - rate * (gradient / ((square / (1 - 0.999**step)).sqrt() + 1e-8) + decay * y)
        top = max(top, rate)
        total += top**2
        x = (1 - top**2 / total) * x + top**2 / total * z
    return torch.stack([0.1 * z + 0.9 * x, x])


@pytest.mark.proves("schedule_free_adamw")
def test_schedule_free_is_its_formula_and_gives_the_average() -> None:
    grads, parameter = gradients(3, 4, steps=8), weight(3, 4)
    rates = [0.01 * min(1.0, (step + 1) / 4) for step in range(8)]
    trains, average = schedule_free(parameter.detach(), grads, rates, decay=0.1)
    optimizer = ScheduleFreeAdamW([parameter], weight_decay=0.1)
    for gradient, rate in zip(grads, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        follow(optimizer, parameter, [gradient])
    close(parameter.detach(), trains)
    before = parameter.detach().clone()
    with optimizer.averaged():
        close(parameter.detach(), average)
    assert torch.equal(parameter.detach(), before)


@pytest.mark.proves("schedule_free_adamw")
@pytest.mark.parametrize("power", [0.0, 2.0])
def test_schedule_free_is_the_reference_class(power: float) -> None:
    """On a parabola gradients depend on where they are taken; the reference warms up by itself and decays y too."""
    goal, one, other = random(3, 4, seed=1), weight(3, 4), weight(3, 4)
    free = ScheduleFreeAdamW([one], weight_decay=0.1, power=power)
    options = {"warmup_steps": 5, "weight_decay": 0.1, "r": power, "foreach": False}
    theirs = AdamWScheduleFree([other], lr=0.02, **options)
    theirs.train()
    for step in range(20):
        free.param_groups[0]["lr"] = 0.02 * min(1.0, (step + 1) / 5)
        follow(free, one, [one.detach() - goal])
        follow(theirs, other, [other.detach() - goal])
    close(one.detach(), other.detach(), 1e-6)
    theirs.eval()
    with free.averaged():
        close(one.detach(), other.detach(), 1e-6)


@pytest.mark.proves("schedule_free_adamw")
def test_schedule_free_of_next_to_no_beta_averages_the_iterates_of_adam() -> None:
    """With beta1 = 0 gradients are taken at z (Polyak's average); on a parabola they depend on where they are taken."""
    goal, one, other = random(3, 4, seed=1), weight(3, 4), weight(3, 4)
    free = ScheduleFreeAdamW([one], lr=0.05, betas=(1e-9, 0.999))
    adam = torch.optim.AdamW([other], lr=0.05, betas=(0.0, 0.999), weight_decay=0.0)
    iterates = []
    for _ in range(20):
        follow(free, one, [one.detach() - goal])
        iterates.append(follow(adam, other, [other.detach() - goal]))
    close(one.detach(), iterates[-1], 1e-6)
    with free.averaged():
        close(one.detach(), torch.stack(iterates).mean(0), 1e-6)


@pytest.mark.proves("soap")
def test_soap_is_adamw_where_the_eigenbasis_is_the_standard_one() -> None:
    """Gradients with one number a row and column have diagonal products; the first of them is only looked at."""
    grads = [torch.diag(random(5, seed=step)) for step in range(12)]
    grads[0] = torch.diag(torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0], dtype=torch.float64))
    options = {"betas": (0.95, 0.95), "weight_decay": 0.0}
    parameter = weight(5, 5)
    expected = adamw(parameter.detach(), grads[1:], 0.01, betas=(0.95, 0.95))
    found = follow(SOAP([parameter], lr=0.01, precondition_frequency=100, **options), parameter, grads)
    close(found, expected, 1e-6)


@pytest.mark.proves("soap")
def test_soap_is_its_formula_over_a_refreshed_basis() -> None:
    grads, parameter = gradients(4, 3, steps=7), weight(4, 3)
    value, mean, square = parameter.detach().clone(), torch.zeros(4, 3).double(), torch.zeros(4, 3).double()
    left, right = 0.05 * grads[0] @ grads[0].T, 0.05 * grads[0].T @ grads[0]  # of means that begin at zero
    u, v = (torch.linalg.eigh(each).eigenvectors.flip(-1) for each in (left, right))
    for step, gradient in enumerate(grads[1:], start=1):
        mean = 0.95 * mean + 0.05 * gradient
        square = 0.95 * square + 0.05 * (u.T @ gradient @ v) ** 2
        turned = u.T @ mean @ v / (1 - 0.95**step) / ((square / (1 - 0.95**step)).sqrt() + 1e-8)
        value = 0.999 * value - 0.01 * u @ turned @ v.T
        left, right = 0.95 * left + 0.05 * gradient @ gradient.T, 0.95 * right + 0.05 * gradient.T @ gradient
        if step % 3 == 0:
            rows = (u.T @ left @ u).diagonal().argsort(descending=True)
            columns = (v.T @ right @ v).diagonal().argsort(descending=True)
            square = square[rows][:, columns]
            u, v = torch.linalg.qr(left @ u[:, rows]).Q, torch.linalg.qr(right @ v[:, columns]).Q
    found = follow(SOAP([parameter], lr=0.01, precondition_frequency=3, weight_decay=0.1), parameter, grads)
    close(found, value, 1e-8)
    wide = weight(4, 30)
    optimizer = SOAP([wide], lr=0.01, max_precond_dim=10)
    follow(optimizer, wide, gradients(4, 30, steps=3))
    assert "columns_basis" not in optimizer.state[wide] and "rows_basis" in optimizer.state[wide]
