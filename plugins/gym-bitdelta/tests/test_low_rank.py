"""Factors of a LoRA in one and two bits: the size, the error, and that the choice of factors does not matter."""

from __future__ import annotations

import pytest
import torch

from gym_bitdelta.delta import file
from gym_bitdelta.delta.header import data_bytes
from gym_bitdelta.fit import low_rank_factors
from gym_bitdelta.fit.encode_weight import Coding, encode, least_bytes, squared_error
from gym_bitdelta.fit.low_rank_factors import Ranked

OUT, IN, RANK = 512, 768, 16


@pytest.fixture(scope="module")
def lora() -> tuple[torch.Tensor, torch.Tensor]:
    """Return B and A with orthonormal directions, sizes e^(-i/4), and an invertible matrix between them, in float64."""
    draws = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=draws, dtype=torch.float64)

    left, right = torch.linalg.qr(normal(OUT, RANK)).Q, torch.linalg.qr(normal(IN, RANK)).Q
    between = normal(RANK, RANK)
    return left * torch.exp(-torch.arange(RANK) / 4.0) @ between, torch.linalg.solve(between, right.T)


def error_of(upper, lower, **options):
    change = (upper @ lower).float()
    record = low_rank_factors.encode(
        low_rank_factors.of_product(upper[None], lower[None]), change.shape, Ranked(**options)
    )
    return squared_error(change, record), 8 * data_bytes({"": record.entry}) / (RANK * (OUT + IN)), record


def test_a_lora_in_a_bit_and_a_half(lora):
    """At least 10 times smaller than its factors in bf16, error 0.30 at most; without turns as it is published."""
    error, bits, record = error_of(*lora)
    assert error <= 0.30 and bits <= 1.6, (error, bits)
    assert record.entry.leading == 4  # e^(-i/2): four components have 80 % of the energy
    two, _, _ = error_of(*lora, energy=1.0, bits=2.0, turns=0)
    one, _, _ = error_of(*lora, energy=0.0, turns=0)
    assert two <= 0.23 < one == pytest.approx(0.59, abs=0.02)


@pytest.mark.parametrize(("energy", "bits", "most"), [(0.8, 1.5, 0.88), (1.0, 2.0, 0.75), (0.0, 1.0, 0.65)])
def test_sides_fitted_to_the_codes_of_each_other_are_nearer_to_the_change(lora, energy, bits, most):
    """In as many bits, and more turns never harm: the best codes of all are kept."""
    found = [error_of(*lora, energy=energy, bits=bits, turns=turns) for turns in (0, 1, 2, 8)]
    errors = [error for error, _, _ in found]
    assert errors == sorted(errors, reverse=True) and errors[-1] <= most * errors[0], errors
    assert len({size for _, size, _ in found}) == 1


def test_a_file_is_ten_times_smaller_than_the_adapter_in_bf16(lora, tmp_path):
    """Names and header included, of a small model: ten matrices of 512 x 768."""
    upper, lower = lora
    change, found, numbers = (upper @ lower).float(), {}, 0
    record = low_rank_factors.encode(low_rank_factors.of_product(upper[None], lower[None]), change.shape, Ranked())
    for layer in range(2):
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj"):
            found[f"model.layers.{layer}.{name}.weight"] = record
            numbers += RANK * (OUT + IN)
    file.write(tmp_path / file.NAME, file.made("0" * 64, found, {"name": "BitDelta"}, {"safety": "not evaluated"}))
    again = file.read(tmp_path / file.NAME)
    assert all(squared_error(change, each) <= 0.30 for each in again.records.values())
    assert 2 * numbers / (tmp_path / file.NAME).stat().st_size >= 10


def test_signs_of_the_factors_as_they_come_are_worse_than_nothing(lora):
    upper, lower = (factor.float() for factor in lora)
    naive = [encode(factor, Coding("signs", 1, "tensor")).values() for factor in (upper, lower)]
    change = upper @ lower
    assert float((change - naive[0] @ naive[1]).square().sum() / change.square().sum()) > 1
    assert squared_error(change, encode(change, Coding("signs", 1, "tensor"))) == pytest.approx(0.43, abs=0.1)


def test_any_factors_of_the_same_change_give_the_same_codes(lora):
    upper, lower = lora
    mixed = torch.randn(RANK, RANK, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    again = (upper @ mixed, torch.linalg.solve(mixed, lower))
    first, second = error_of(*lora)[2], error_of(*again)[2]
    assert float((first.values() - second.values()).norm() / first.values().norm()) < 1e-3


@pytest.mark.parametrize("energy", [0.0, 0.5, 0.95, 1.0])
def test_gains_are_those_of_least_squares(lora, energy):
    """No gain of any component could be better: checked in float64 with one dense product for each."""
    upper, lower = lora
    _, _, record = error_of(upper, lower, energy=energy, bits=2.0)
    left, right = (factor[0].double() for factor in record.factors())
    apart = upper @ lower - left.T @ right
    for component in range(record.entry.rank):
        direction = torch.outer(left[component], right[component])
        assert abs(float((apart * direction).sum() / direction.square().sum())) < 2e-3


def test_the_rank_of_a_merged_change_is_found(lora):
    upper, lower = (factor.float() for factor in lora)
    weight = torch.randn(OUT, IN, generator=torch.Generator().manual_seed(3)) * 2
    change = (weight + upper @ lower) - weight  # with the rounding of fp32
    found = low_rank_factors.factored(torch.stack([change, change * 2]), 64)
    assert found.left.shape == (2, RANK, OUT) and found.right.shape == (2, RANK, IN)
    assert float((found.left[0].T @ found.right[0] - change).norm() / change.norm()) < 1e-3
    assert low_rank_factors.factored(change[None], 8) is None
    assert low_rank_factors.factored(torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(1)), 256) is None


def test_weights_of_the_other_layout_and_stacks(lora):
    upper, lower = lora
    stack = torch.stack([(upper @ lower).float(), (upper * 3 @ lower).float()])
    record = low_rank_factors.encode(low_rank_factors.factored(stack, 64), stack.shape, Ranked())
    turned = low_rank_factors.encode(low_rank_factors.factored(stack, 64), stack.mT.shape, Ranked(), transposed=True)
    assert torch.equal(record.values(), turned.values().mT) and squared_error(stack, record) <= 0.30


@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_larger_than_the_factors_is_known_without_coding_it(lora, sparse):
    """The bound holds for every coding, with rows and with numbers that did not change."""
    change = (lora[0] @ lora[1]).float()[:64, :96]
    if sparse:
        change[::3], change[:, ::2] = 0, 0
    for coding in (Coding("signs"), Coding("signs", 2, "row"), Coding("grid", 4, "group", 32), Coding("ternary")):
        assert least_bytes(change, coding) <= data_bytes({"": encode(change, coding).entry}), coding
