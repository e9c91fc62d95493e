"""OFT and BOFT: rotations that keep lengths and angles, and say where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gym_adapters_families import own_way
from peft.tuners.oft.layer import OFTRotationModule
from transformers import AutoModelForCausalLM

from gym_adapters import BOFT, OFT
from gym_adapters.tuners.boft import rotate
from gym_core import GymError


def matrices(model: Any) -> list[torch.Tensor]:
    return [module.get_weight().detach() for module in model.modules() if isinstance(module, OFTRotationModule)]


@pytest.mark.proves("oft")
def test_trained_rotations_are_orthogonal_and_keep_angles(bench: Any) -> None:
    adapted = OFT(block_size=8).build(model=bench.base(), seed=0)
    bench.train(adapted.model, steps=1)
    found = matrices(adapted.model)
    errors = [float((each.T @ each - torch.eye(len(each))).abs().max()) for each in found]
    assert 0 < max(errors) < 1e-3
    assert adapted.orthogonality() == pytest.approx(max(errors), abs=1e-6)
    assert max(float((each - torch.eye(len(each))).abs().max()) for each in found) > 0.01, "nothing was rotated"
    own, merged = bench.base().model.layers[0].self_attn.q_proj, adapted.merged().model.layers[0].self_attn.q_proj
    assert not torch.allclose(own.weight, merged.weight, atol=1e-3)
    assert torch.allclose(own.weight @ own.weight.T, merged.weight @ merged.weight.T, atol=1e-3)  # between neurons


@pytest.mark.proves("oft")
@pytest.mark.parametrize("exact", [False, True])
def test_rotations_that_became_large_are_reported_unless_exact(
    bench: Any, exact: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapted = OFT(block_size=8, exact=exact).build(model=bench.base(), seed=0)
    bench.train(adapted.model, steps=20)  # at a rate that turns them far
    errors = [float((each.T @ each - torch.eye(len(each))).abs().max()) for each in matrices(adapted.model)]
    adapted.save(tmp_path / "adapter", "base")
    assert (max(errors) < 1e-5) == exact
    assert ("set `exact: true`" in capsys.readouterr().err) != exact


def dense(weight: torch.Tensor) -> torch.Tensor:
    """Build a butterfly as matrices: P_i D_i P_i^T, the last on the left, with chunks of half a block 2^i apart together."""
    factors, blocks, size, _ = weight.shape
    count, half, whole = blocks * size, size // 2, torch.eye(blocks * size, dtype=weight.dtype)
    for number in range(factors):
        skew = (weight[number] - weight[number].mT) / 2
        turns = torch.linalg.inv(torch.eye(size, dtype=weight.dtype) + skew)
        turns = (torch.eye(size, dtype=weight.dtype) - skew) @ turns
        chunks = [
            group * 2 ** (number + 1) + low + side * 2**number
            for group in range(2 * blocks // 2 ** (number + 1))
            for low in range(2**number)
            for side in (0, 1)
        ]
        order = [chunk * half + at for chunk in chunks for at in range(half)]
        permuted = torch.eye(count, dtype=weight.dtype)[order].T
        whole = permuted @ torch.block_diag(*turns) @ permuted.T @ whole
    return whole


@pytest.mark.proves("boft")
@pytest.mark.parametrize(("factors", "blocks", "size"), [(1, 3, 4), (2, 4, 2), (3, 8, 4), (4, 8, 2)])
def test_a_butterfly_is_the_product_of_its_factors(factors: int, blocks: int, size: int) -> None:
    weight = torch.randn(factors, blocks, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(2, 5, blocks * size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    matrix = dense(weight)
    torch.testing.assert_close(rotate(inputs, weight), inputs @ matrix)
    torch.testing.assert_close(matrix.T @ matrix, torch.eye(len(matrix), dtype=torch.float64))
    # each output sees so many
    assert (matrix.abs() > 1e-9).sum(1).min() == min(size * 2 ** (factors - 1), blocks * size)


@pytest.mark.proves("boft")
def test_it_is_the_butterfly_of_peft() -> None:
    from peft.tuners.boft.layer import BOFTLayer

    order = BOFTLayer.block_butterfly_perm
    for number, blocks, size in ((1, 8, 4), (2, 8, 4), (3, 8, 2)):
        count = blocks * size
        # what peft calls boft_P[number]
        matrix = torch.eye(count)[order(None, count, blocks // 2**number, size // 2, 3)]
        weight = torch.zeros(number + 1, blocks, size, size)
        weight[number] = torch.randn(blocks, size, size, generator=torch.Generator().manual_seed(number))
        skew = (weight[number] - weight[number].mT) / 2
        turns = (torch.eye(size) - skew) @ torch.linalg.inv(torch.eye(size) + skew)
        wanted = matrix @ torch.block_diag(*turns) @ matrix.T
        torch.testing.assert_close(rotate(torch.eye(count), weight), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.proves("boft", "oft")
@pytest.mark.parametrize(
    ("config", "error"),
    [
        (OFT(block_size=5), "blocks of 5 do not divide the 16 inputs of .*q_proj"),
        (OFT(), "blocks of 32 do not divide the 16 inputs"),
        (OFT(rank=3), "3 blocks do not divide"),
        (
            BOFT(block_size=8, n_butterfly_factor=3),
            "3 factors of blocks of 8 need a multiple of 32 inputs, and .*q_proj has 16",
        ),
    ],
)
def test_blocks_that_do_not_fit_are_refused(bench: Any, config: Any, error: str) -> None:
    with pytest.raises(GymError, match=error):
        config.build(model=bench.base(), seed=0)


@pytest.mark.proves("boft")
def test_a_turned_head_is_merged_without_the_embeddings(bench: Any, tmp_path: Path) -> None:
    adapted = BOFT(block_size=4, target_modules="q_proj,lm_head").build(model=bench.base(), seed=0)
    bench.train(adapted.model)
    merged = adapted.merged()
    torch.testing.assert_close(bench.logits(merged), bench.logits(adapted.model), rtol=1e-4, atol=1e-4)
    merged.save_pretrained(tmp_path / "merged")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(bench.logits(saved), bench.logits(adapted.model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [OFT(block_size=8), OFT(block_size=8, exact=True), BOFT(block_size=4)])
def test_layers_whose_inputs_have_a_dimension_for_heads_are_rotated_too(options: OFT | BOFT) -> None:
    """The latents of DeepSeek-V3 come as [batch, 1, tokens, width], which peft takes for an image."""
    adapted = options.build(model=own_way("deepseek_v3"), seed=0)
    for name, weight in adapted.model.named_parameters():
        if weight.requires_grad and "boft_s" not in name:
            torch.nn.init.normal_(weight, std=0.05, generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(24).view(2, 12)
    adapted.model(input_ids=tokens, labels=tokens).loss.backward()
    weights = [weight for weight in adapted.model.parameters() if weight.requires_grad]
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in weights)
    found = adapted.model(input_ids=tokens).logits
    torch.testing.assert_close(adapted.merged()(input_ids=tokens).logits, found, rtol=1e-3, atol=1e-3)
