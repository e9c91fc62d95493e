"""Products in fp8 are those of the definition in float64 with its rounding written out, for each token by itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from gym_core import GymError
from gym_testkit.architectures import build
from gym_torch.generation.cache_support import CacheSupport
from gym_torch.generation.generator import Generator
from gym_torch.model import fp8_products
from gym_torch.model.fp8_products import (
    Fp8Forward,
    Fp8Recipe,
    Scaled,
    able,
    check,
    product,
    scaled,
    use,
    weights_kept,
)

RECIPES: tuple[Fp8Recipe, ...] = ("rowwise", "rowwise_with_gw_hp")
OUT = 2.0**-8  #: rounding of a result in bf16, relative
#: Of sums within the products of a GPU, which keep about 14 bits of each term (arXiv:2412.19437, section 3.3.2).
ADDED = 2.0**-13
ROUND = 2.0**-4  #: rounding of a number in e4m3, relative; below the smallest normal number it is absolute:
SUBNORMAL = 2.0**-10 / 224  #: of the largest number of a row, which is between 224 and 448 times the scale


def rounded(matrix: Tensor) -> Tensor:
    """A matrix in e4m3 with a scale for each row: three binary places, exponents from -6, ties to even."""
    largest = matrix.abs().amax(1, keepdim=True)
    scale = torch.where(largest > 0, 2.0 ** (largest / 448).log2().ceil(), 1.0)
    numbers = matrix / scale
    unit = 2.0 ** (numbers.abs().log2().floor().clamp(min=-6) - 3)
    return (numbers / unit).round() * unit * scale


def hold(found: Tensor, left: Tensor, right: Tensor, fp8: bool = True) -> None:
    """Hold a product to its definition, and the definition to the product without rounding: `left [m, k]`, `right [n, k]`."""
    left, right = left.double(), right.double()
    defined = rounded(left) @ rounded(right).T if fp8 else left @ right.T
    whole = left.abs() @ right.abs().T
    added = ADDED if found.is_cuda and fp8 else 1e-5
    assert ((found.double() - defined).abs() / (OUT * defined.abs() + added * whole)).max() <= 1
    small = [SUBNORMAL * part.abs().amax(1, keepdim=True) for part in (left, right)]
    off = [ROUND * part.abs() + least for part, least in zip((left, right), small, strict=True)]
    bound = off[0] @ right.abs().T + left.abs() @ off[1].T + off[0] @ off[1].T
    assert ((defined - left @ right.T).abs() <= bound).all()


def linear(recipe: Fp8Recipe, dtype: torch.dtype = torch.float32, bias: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    layer = nn.Linear(64, 48, bias).to(dtype)
    layer.forward = Fp8Forward(layer, recipe)  # type: ignore[method-assign]
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", RECIPES)
def test_value_and_gradients_are_those_of_the_definition(recipe, dtype):
    """Of 37 tokens, which 16 does not divide, in sizes from 1e-4 to 1e4."""
    layer = linear(recipe, dtype)
    sizes = 10.0 ** torch.linspace(-4, 4, 37)[:, None]
    given = (torch.randn(37, 64) * sizes).bfloat16().requires_grad_()
    by_out = (torch.randn(37, 48) / sizes).bfloat16()
    out = layer(given)
    out.backward(by_out)
    assert out.dtype == torch.bfloat16 and layer.weight.grad.dtype == dtype and given.grad.dtype == torch.bfloat16
    weight, read = layer.weight.detach(), given.detach()
    hold(out, read, weight)
    hold(given.grad, by_out, weight.T)
    hold(layer.weight.grad, by_out.T, read.T, fp8=recipe == "rowwise")


def test_a_bias_is_added_and_a_frozen_weight_has_no_gradient():
    layer, bare = linear("rowwise", bias=True), linear("rowwise", bias=False)
    bare.weight = layer.weight
    given = torch.randn(2, 5, 64, requires_grad=True)
    assert torch.equal(layer(given), bare(given) + layer.bias)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(given), bare(given) + layer.bias.bfloat16())
    layer.weight.requires_grad_(False)
    layer(given).sum().backward()
    assert layer.weight.grad is None and layer.bias.grad is not None
    assert given.grad.dtype == torch.float32 and given.grad.abs().sum() > 0


def test_a_token_does_not_depend_on_its_company():
    layer, given = linear("rowwise"), torch.randn(20, 64)
    alone = layer(given[3:4])
    given[4:] *= 1e4
    assert torch.equal(layer(given)[3:4], alone)


def test_a_gpu_takes_what_it_is_given():
    """On tensors without data, for which torch asks what its kernels ask: how matrices lie, and sizes that 16 divides."""
    given, by_out, weight = torch.randn(37, 64), torch.randn(37, 48), torch.randn(48, 64)
    for pair in ((given, weight), (by_out, weight.T), (by_out.T, given.T)):
        held = [scaled(matrix) for matrix in pair]
        with FakeTensorMode():
            left, right = (
                Scaled(*(torch.empty_strided(p.shape, p.stride(), dtype=p.dtype, device="cuda") for p in each))
                for each in held
            )
            assert product(left, right).shape == (len(pair[0]), len(pair[1]))


def test_rows_of_zeros_and_numbers_that_are_not_finite():
    matrix = torch.zeros(3, 16)
    for wrong in (float("inf"), float("nan")):
        matrix[1, 2], matrix[2, 5] = 448.0, wrong
        found = scaled(matrix)
        assert torch.equal(found.numbers.float()[:2], matrix[:2])
        out = product(found, scaled(torch.eye(16)))
        assert out[0].eq(0).all() and out[1].isfinite().all() and not out[2].isfinite().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_small_rows_keep_their_digits_whatever_they_are_held_in(dtype):
    """A checkpoint in fp16 may have rows whose factor is a number that fp16 has not."""
    rows = torch.randn(5, 64) * torch.tensor([1.0, 0.0, 1e-3, 1e-6, 1e4])[:, None]
    held = rows.to(dtype)
    numbers, scales = scaled(held)
    torch.testing.assert_close(numbers.float() * scales, rounded(held.float()), rtol=0, atol=0)


def test_layers_of_a_model_compute_so_but_for_the_head_and_what_has_odd_sizes():
    model = build("llama")
    inside = {id(part) for part in model.model.layers.modules() if isinstance(part, nn.Linear)}
    assert {id(layer) for layer in able(model)} == inside and inside
    use(model, None)
    assert not any("forward" in vars(part) for part in model.modules())
    use(model, "rowwise")
    assert {id(part) for part in model.modules() if isinstance(vars(part).get("forward"), Fp8Forward)} == inside
    copied: Any = copy.deepcopy(model)
    changed = copied.model.layers[0].mlp.up_proj
    assert changed.forward.layer is changed, "a copy computes with weights of its own"


def test_what_cannot_compute_so_is_refused(monkeypatch):
    with pytest.raises(GymError, match="experts"):
        able(build("qwen3_moe"))
    monkeypatch.setattr(fp8_products, "MULTIPLE", 1 << 20)
    with pytest.raises(GymError, match="no linear layer of LlamaForCausalLM"):
        able(build("llama"))
    with pytest.raises(GymError, match="no products in fp8") as caught:
        check("rowwise")
    assert "train: {precision: bf16}" in str(caught.value) and check(None) is None


@torch.no_grad()
def test_generation_rounds_weights_once_and_says_the_same(monkeypatch):
    model, tokens = build("llama").eval(), torch.tensor([[5, 6, 7]])
    use(model, "rowwise")
    made = Generator(model, None, support=CacheSupport(True)).generate(tokens.tolist(), 4, stop_ids=())
    plain = model(tokens).logits
    scores = plain[0, -1].log_softmax(-1)
    assert float(scores[made[0].tokens[0]]) == pytest.approx(made[0].log_probs[0], abs=1e-6)
    with weights_kept(model):
        monkeypatch.setattr(fp8_products, "scaled", lambda matrix: scaled(matrix) if len(matrix) == 3 else 1 / 0)
        assert torch.equal(model(tokens).logits, plain)
    assert all(layer.forward.kept is None for layer in able(model)), "what is kept would outlive a step of training"


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", RECIPES)
def test_products_of_a_gpu_are_those_of_the_definition(recipe):
    if not fp8_products.has_products():
        pytest.skip("a GPU of compute capability 8.9")
    layer = linear(recipe).cuda()
    given, by_out = (torch.randn(37, size, device="cuda").bfloat16() for size in (64, 48))
    out = layer(given.requires_grad_())
    out.backward(by_out)
    hold(out, given.detach(), layer.weight.detach())
    hold(given.grad, by_out, layer.weight.detach().T)
    hold(layer.weight.grad, by_out.T, given.detach().T, fp8=recipe == "rowwise")
