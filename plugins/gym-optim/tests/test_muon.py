"""Muon on matrices and torch's AdamW elsewhere; what its update looks like."""

from __future__ import annotations

import pytest
import torch
from optim_bench import close, follow, gradients, random, weight
from torch import nn

from gym_optim import Muon
from gym_optim.optimizers.muon import newton_schulz


@pytest.mark.proves("adamw", "muon")
def test_the_rest_is_torchs_adamw() -> None:
    embedding, vector = weight(9, 4, seed=1), weight(4, seed=2)
    groups = [
        {"params": [embedding], "role": "embedding"},
        {"params": [vector], "role": "vector", "weight_decay": 0.0},
    ]
    ours = [nn.Parameter(parameter.detach().clone()) for parameter in (embedding, vector)]
    rest = [{"params": [ours[0]]}, {"params": [ours[1]], "weight_decay": 0.0}]
    adam = torch.optim.AdamW(rest, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    optimizer = Muon(groups, lr=0.01)
    for step in range(5):
        for parameter, other in zip((embedding, vector), ours, strict=True):
            parameter.grad = random(*parameter.shape, seed=step)
            other.grad = parameter.grad.clone()
        optimizer.step()
        adam.step()
    for parameter, other in zip((embedding, vector), ours, strict=True):
        assert torch.equal(parameter, other)


@pytest.mark.proves("muon")
@pytest.mark.parametrize("shape", [(6, 4), (24, 96), (64, 64)])
@pytest.mark.parametrize("nesterov", [True, False])
def test_a_matrix_moves_as_torchs_muon_moves_it(shape: tuple[int, int], nesterov: bool) -> None:
    """Torch computes the directions in bf16, so they agree to its three digits; length and decay are the same."""
    matrix, steps = weight(*shape), gradients(*shape, steps=5)
    other = nn.Parameter(matrix.detach().clone())
    theirs = torch.optim.Muon([other], lr=0.01, weight_decay=0.1, nesterov=nesterov, adjust_lr_fn="match_rms_adamw")
    start = matrix.detach().clone()
    moved = follow(Muon([matrix], lr=0.01, nesterov=nesterov), matrix, steps) - start
    apart = moved - (follow(theirs, other, steps) - start)
    assert float(apart.norm() / moved.norm()) < 0.02


@pytest.mark.proves("muon")
@pytest.mark.parametrize("shape", [(24, 40), (64, 64)])
def test_in_the_precision_of_torchs_its_directions_are_torchs(shape: tuple[int, int]) -> None:
    gradient = random(*shape).float()
    parameter = nn.Parameter(torch.zeros_like(gradient))
    theirs = torch.optim.Muon([parameter], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False)
    close(newton_schulz(gradient.bfloat16()).float(), -follow(theirs, parameter, [gradient]), 1e-3)


@pytest.mark.proves("muon")
def test_five_steps_are_a_polynomial_of_singular_values() -> None:
    """An odd polynomial of a matrix acts on its singular values alone (arXiv:2502.16982, section 2.1), here in float64."""
    matrix = random(12, 20)
    u, values, vh = torch.linalg.svd(matrix, full_matrices=False)
    expected = values / values.norm()
    for _ in range(5):
        expected = 3.4445 * expected - 4.7750 * expected**3 + 2.0315 * expected**5
    close(newton_schulz(matrix), u @ torch.diag(expected) @ vh, 1e-10)
    close(newton_schulz(matrix.T.float()).double(), (u @ torch.diag(expected) @ vh).T, 1e-4)


def orthogonalized(gradient: torch.Tensor) -> torch.Tensor:
    """Return the update of a first step of rate 1, without its scale."""
    parameter = nn.Parameter(torch.zeros_like(gradient))
    moved = follow(Muon([parameter], lr=1.0, weight_decay=0.0), parameter, [gradient])
    return -moved / (0.2 * max(gradient.shape) ** 0.5)


@pytest.mark.proves("muon")
@pytest.mark.parametrize("shape", [(32, 32), (64, 32), (24, 96)])
def test_singular_values_are_near_one(shape: tuple[int, int]) -> None:
    """For singular values of 0.01 to 1 of the norm the iteration maps them into [0.68, 1.135]."""
    u, _, vh = torch.linalg.svd(random(*shape), full_matrices=False)
    sizes = torch.logspace(-1.5, 0, u.shape[1], dtype=torch.float64)
    gradient = u @ torch.diag(sizes / sizes.norm()) @ vh
    found = orthogonalized(gradient)
    values = torch.linalg.svdvals(found)
    assert float(values.min()) >= 0.68 - 0.01 and float(values.max()) <= 1.135 + 0.01
    assert torch.nn.functional.cosine_similarity(found.reshape(-1), (u @ vh).reshape(-1), dim=0) >= 0.97


@pytest.mark.proves("muon")
@pytest.mark.parametrize("shape", [(512, 512), (1536, 512), (256, 1024)])
def test_the_update_of_a_wide_matrix_is_as_long_as_adamws(shape: tuple[int, int]) -> None:
    """Its root mean square is 0.2, within a tenth, where singular values are as those of random matrices."""
    parameter = nn.Parameter(torch.zeros(shape))
    moved = follow(Muon([parameter], lr=1.0, weight_decay=0.0), parameter, [random(*shape).float()])
    assert float(moved.square().mean().sqrt()) == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("shape", [(24, 24), (96, 96), (96, 24)])
def test_the_update_is_as_long_as_its_singular_values_say(shape: tuple[int, int]) -> None:
    """The iteration leaves them between 0.68 and 1.135, so 0.2 is exact for none: narrow matrices end 11 % below it."""
    parameter = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    moved = follow(Muon([parameter], lr=1.0, weight_decay=0.0), parameter, gradients(*shape, steps=1))
    values = torch.linalg.svdvals(moved / (0.2 * max(shape) ** 0.5))
    length = float(moved.square().mean().sqrt())
    assert length == pytest.approx(0.2 * float(values.square().mean().sqrt()), rel=1e-9)
    assert 0.2 * 0.66 < length < 0.2 * 1.15
