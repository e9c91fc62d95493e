"""Projected gradients: the rotated-basis identity of GaLore, and what the others add to it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from optim_bench import adamw, close, follow, gradients, random, state_bytes, weight
from torch import Tensor

from gym_core import GymError
from gym_optim import APOLLO, APOLLOMini, Fira, GaLore, QGaLore
from gym_optim.optimizers.apollo import random_projection
from gym_optim.optimizers.fira import limit_norm_growth
from gym_optim.optimizers.galore import leading_singular_vectors
from gym_optim.optimizers.q_galore import dequantize_basis, quantize_basis


def turned(basis: Tensor, grads: list[Tensor]) -> list[Tensor]:
    return [basis.T @ gradient for gradient in grads]


@pytest.mark.proves("galore")
@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5)])
def test_galore_of_full_rank_is_adamw_in_the_basis_of_the_first_gradient(shape: tuple[int, int]) -> None:
    grads, parameter = gradients(*shape, steps=50), weight(*shape)
    upright = shape[0] <= shape[1]
    view = [gradient if upright else gradient.T for gradient in grads]
    start = parameter.detach() if upright else parameter.detach().T
    basis = leading_singular_vectors(view[0], min(shape))
    expected = basis @ adamw(basis.T @ start, turned(basis, view), 0.01, decay=0.1)
    optimizer = GaLore([parameter], lr=0.01, rank=99, update_proj_gap=1000, scale=1.0, weight_decay=0.1)
    found = follow(optimizer, parameter, grads)
    close(found if upright else found.T, expected, 1e-6)


@pytest.mark.proves("galore")
def test_galore_in_the_standard_basis_is_adamw() -> None:
    grads, parameter = gradients(4, 6, steps=50), weight(4, 6)
    grads[0] = torch.cat([torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0])), torch.zeros(4, 2)], dim=1).double()
    expected = adamw(parameter.detach(), grads, 0.01)
    close(follow(GaLore([parameter], lr=0.01, update_proj_gap=1000, scale=1.0), parameter, grads), expected, 1e-6)


@pytest.mark.proves("galore")
def test_galore_brings_its_moments_along_when_the_basis_changes() -> None:
    """Singular vectors stay and their order changes in every step: AdamW in the basis of these vectors, all the time."""
    u, v = (torch.linalg.qr(random(4, 4, seed=seed)).Q for seed in (1, 2))
    sizes = torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    orders = [torch.randperm(4, generator=torch.Generator().manual_seed(seed)) for seed in range(30)]
    grads = [u @ torch.diag(sizes[order]) @ v.T for order in orders]
    parameter = weight(4, 4)
    expected = u @ adamw(u.T @ parameter.detach(), turned(u, grads), 0.01)
    close(follow(GaLore([parameter], lr=0.01, update_proj_gap=1, scale=1.0), parameter, grads), expected, 1e-6)


@pytest.mark.parametrize(
    ("proj_type", "dims"), [("left", (4, 2)), ("right", (6, 2)), ("std", (4, 2)), ("reverse_std", (6, 2))]
)
def test_galore_projects_the_side_it_is_told(proj_type: str, dims: tuple[int, int]) -> None:
    parameter = weight(4, 6)
    optimizer = GaLore([parameter], lr=0.01, rank=2, proj_type=proj_type)  # type: ignore[arg-type]
    follow(optimizer, parameter, gradients(4, 6, steps=2))
    basis = optimizer.state[parameter]["basis"]
    assert basis.shape == dims
    close(basis.T @ basis, torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(4, 9), (9, 4)])
def test_the_basis_is_that_of_the_leading_singular_vectors(shape: tuple[int, int]) -> None:
    gradient = random(*shape)
    expected = torch.linalg.svd(gradient).U[:, :3]
    found = leading_singular_vectors(gradient, 3)
    close(found @ found.T, expected @ expected.T, 1e-8)


def test_only_the_modules_named_are_projected() -> None:
    named = [("layers.0.q_proj.weight", weight(4, 6)), ("layers.0.up_proj.weight", weight(4, 6))]
    optimizer = GaLore([{"params": named, "role": "matrix"}], rank=2, target_modules="q_proj, layers")
    assert [group["own"] for group in optimizer.param_groups] == [True]
    optimizer = GaLore([{"params": named, "role": "matrix"}], rank=2, target_modules=("q_proj",))
    assert [group["own"] for group in optimizer.param_groups] == [True, False]
    roles = GaLore([{"params": [weight(4, 6)], "role": "embedding"}, {"params": [weight(4, 6)]}], rank=2)
    assert [group["own"] for group in roles.param_groups] == [False, True]


@pytest.mark.parametrize("kind", [GaLore, QGaLore, Fira, APOLLO, APOLLOMini])
def test_a_module_that_is_not_there_is_refused(kind: Any) -> None:
    """A part of a name is no module of a path: `attn` would silently leave `self_attn` out."""
    named = [("layers.0.self_attn.q_proj.weight", weight(4, 6)), ("layers.0.mlp.up_proj.weight", weight(4, 6))]
    with pytest.raises(GymError, match="no matrix inside the model has `attn` in its path") as caught:
        kind([{"params": named, "role": "matrix"}], target_modules="mlp,attn")
    assert "q_proj, up_proj" in caught.value.problems[0].fix
    with pytest.raises(GymError, match="`mlp` in its path"):
        kind([{"params": [weight(4, 6)], "role": "matrix"}], target_modules="mlp")


@pytest.mark.proves("galore")
@pytest.mark.parametrize("kind", [GaLore, QGaLore, Fira])
def test_a_change_of_basis_does_not_lengthen_a_step(kind: Any) -> None:
    """White noise, of which a new basis shares an eighth with the old: with 1 - beta2^t a step would be twice as long."""
    parameter, interval, norms = torch.nn.Parameter(torch.zeros(128, 128)), 60, []
    optimizer = kind([parameter], lr=1.0, rank=16, update_proj_gap=interval, scale=1.0)
    for step in range(3 * interval + 3):
        before = parameter.detach().clone()
        norms.append(float((follow(optimizer, parameter, [random(128, 128, seed=step).float()]) - before).norm()))
    for change in range(interval, len(norms), interval):
        assert max(norms[change : change + 3]) < 1.17 * norms[change - 1]


@pytest.mark.proves("fira")
def test_fira_of_full_rank_is_galore() -> None:
    grads, one, other = gradients(4, 6, steps=30), weight(4, 6), weight(4, 6)
    expected = follow(GaLore([other], lr=0.01, rank=4, update_proj_gap=10), other, grads)
    close(follow(Fira([one], lr=0.01, rank=4, update_proj_gap=10), one, grads), expected, 1e-6)


@pytest.mark.proves("fira")
def test_fira_is_its_formula() -> None:
    grads, parameter = gradients(4, 6, steps=6), weight(4, 6)
    basis, value = leading_singular_vectors(grads[0], 2), parameter.detach().clone()
    mean, square, before = torch.zeros(2, 6).double(), torch.zeros(2, 6).double(), None
    for step, gradient in enumerate(grads, start=1):
        kept = basis.T @ gradient
        mean, square = 0.9 * mean + 0.1 * kept, 0.999 * square + 0.001 * kept**2
        adam = mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        factor = (adam**2).sum(0).sqrt() / ((kept**2).sum(0).sqrt() + 1e-8)
        rest = (gradient - basis @ kept) * factor
        norm = float((rest**2).sum() ** 0.5)
        limit = norm if before is None else min(norm, 1.01 * before)
        value, before = value - 0.01 * 0.25 * (basis @ adam + rest * limit / norm), limit
    close(follow(Fira([parameter], lr=0.01, rank=2, update_proj_gap=1000), parameter, grads), value, 1e-8)


@pytest.mark.proves("apollo", "apollo_mini", "fira")
def test_the_norm_of_an_update_grows_by_a_hundredth_at_most() -> None:
    state: dict[str, Tensor] = {}
    norms = [float(limit_norm_growth(size * random(3, 4), state).norm()) for size in (1.0, 5.0, 5.0, 0.1, 3.0)]
    assert all(after <= 1.01 * before * (1 + 1e-12) for before, after in itertools.pairwise(norms))
    assert norms[3] == pytest.approx(0.1 * float(random(3, 4).norm()))


@pytest.mark.proves("apollo_mini")
def test_apollo_mini_of_a_constant_gradient() -> None:
    """Adam makes every number of the projection its sign, so the factor is sqrt(columns) over the norm of the projection."""
    gradient, parameter = random(4, 6), weight(4, 6)
    kept = random_projection(gradient, 1, "7/0/0") @ gradient
    expected = parameter.detach() - 5 * 0.01 * 128**0.5 * gradient * 6**0.5 / kept.norm()
    found = follow(APOLLOMini([parameter], lr=0.01, seed=7, eps=1e-30), parameter, [gradient] * 5)
    close(found, expected, 1e-6)


@pytest.mark.proves("apollo")
@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_apollo_is_its_formula(shape: tuple[int, int]) -> None:
    grads, parameter = gradients(*shape, steps=6), weight(*shape)
    wide = [gradient if shape[0] < shape[1] else gradient.T for gradient in grads]
    value = parameter.detach().clone() if shape[0] < shape[1] else parameter.detach().T.clone()
    mean, square, before = torch.zeros(2, 6).double(), torch.zeros(2, 6).double(), None
    for step, gradient in enumerate(wide, start=1):
        kept = random_projection(gradient, 2, f"0/0/{(step - 1) // 3}") @ gradient
        mean, square = 0.9 * mean + 0.1 * kept, 0.999 * square + 0.001 * kept**2
        adam = mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-6)
        update = gradient * (adam**2).sum(0).sqrt() / ((kept**2).sum(0).sqrt() + 1e-8)
        norm = float((update**2).sum() ** 0.5)
        limit = norm if before is None else min(norm, 1.01 * before)
        value, before = value - 0.01 * 2.0 * update * limit / norm, limit
    found = follow(APOLLO([parameter], lr=0.01, rank=2, update_proj_gap=3, scale=4.0), parameter, grads)
    close(found if shape[0] < shape[1] else found.T, value, 1e-8)


@pytest.mark.proves("apollo", "apollo_mini")
def test_the_projection_follows_from_the_seed_and_keeps_lengths() -> None:
    gradient = random(300, 2)
    assert torch.equal(random_projection(gradient, 64, "0/1/2"), random_projection(gradient, 64, "0/1/2"))
    assert not torch.equal(random_projection(gradient, 64, "0/1/2"), random_projection(gradient, 64, "0/1/3"))
    share = (random_projection(gradient, 256, "0") @ gradient).norm(dim=0) / gradient.norm(dim=0)
    assert ((share - 1).abs() < 0.2).all()
    first, second = weight(4, 6), weight(4, 6)
    optimizer = APOLLO([first, second], rank=2)
    for parameter in (first, second):
        parameter.grad = random(4, 6)
    optimizer.step()
    assert not torch.allclose(first, second), "each matrix has a projection of its own"


@pytest.mark.proves("q_galore")
def test_four_bits_hold_a_basis_nearly() -> None:
    for shape in ((7, 3), (64, 16)):
        basis = torch.stack([torch.linalg.qr(random(*shape, seed=seed)).Q for seed in range(2)])
        state = quantize_basis(basis)
        error = (dequantize_basis(state, *shape) - basis).abs().amax() / basis.abs().amax()
        assert error <= 0.5 / 7 + 1e-12
        assert state["basis_codes"].shape == (2, (shape[0] * shape[1] + 1) // 2)


@pytest.mark.proves("q_galore")
def test_q_galore_goes_where_galore_goes_with_a_quarter_of_its_state() -> None:
    grads, one, other = gradients(64, 96, steps=10), weight(64, 96), weight(64, 96)
    start = one.detach().clone()
    small, large = QGaLore([one], lr=0.01, rank=16), GaLore([other], lr=0.01, rank=16)
    found, expected = follow(small, one, grads) - start, follow(large, other, grads) - start
    assert torch.nn.functional.cosine_similarity(found.view(-1), expected.view(-1), dim=0) > 0.97
    assert state_bytes(small) < 0.27 * state_bytes(large) * 4 / 8 * 2  # of float64; scales are float64 too here


@pytest.mark.proves("q_galore")
def test_q_galore_projects_less_often_where_the_basis_stays() -> None:
    parameter = weight(8, 12)
    optimizer = QGaLore([parameter], rank=2, update_proj_gap=1, queue_size=2)
    follow(optimizer, parameter, [random(8, 12)] * 3)
    assert optimizer.state[parameter]["interval"] == [2], "two cosines of 1"
    follow(optimizer, parameter, [random(8, 12)] * 4)
    assert optimizer.state[parameter]["interval"] == [4]
    restless = weight(8, 12)
    other = QGaLore([restless], rank=2, update_proj_gap=1, queue_size=2, cos_threshold=0.99)
    follow(other, restless, gradients(8, 12, steps=9))
    assert other.state[restless]["interval"] == [1]
