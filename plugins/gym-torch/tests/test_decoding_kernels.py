"""Products of few rows and attention to a cache are those of their definitions in float64, and no row depends on the others."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from gym_testkit.architectures import build
from gym_torch.attention.cached_attention import places_of
from gym_torch.generation.cast_once import cast_once
from gym_torch.generation.few_rows import FewRows
from gym_torch.kernels import decoding_kernels, few_row_products, linear_products
from gym_torch.kernels.decoding_kernels import Kernel
from gym_torch.kernels.kernel_functions import Kept, KernelFunctions, Scores

#: By precision, how far a result may be off, relative: the rounding of sums in fp32, and its own.
OFF = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8 + 1e-6}
EVERY = [(dtype, each) for dtype in OFF for each in few_row_products.kernels() if dtype in each.dtypes]


@pytest.fixture(params=OFF, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.fixture
def kernel(dtype: torch.dtype) -> Kernel:
    found = decoding_kernels.kernel(dtype)
    if found is None:
        pytest.skip("no compiler")
    return found


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def hold(found: Tensor, exact: Tensor) -> None:
    assert found.shape == exact.shape
    assert float((found.double() - exact).norm()) <= OFF[found.dtype] * float(exact.norm())


def defined(given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return nn.functional.linear(given.double(), weight.double(), None if bias is None else bias.double())


@pytest.mark.parametrize("inputs", [1, 7, 16, 40, 512])
@pytest.mark.parametrize("outputs", [1, 3, 33, 260])
def test_a_product_is_that_of_its_definition_for_any_number_of_rows(
    kernel: Kernel, dtype: torch.dtype, inputs: int, outputs: int
) -> None:
    sizes = (15, inputs), (outputs, inputs), (outputs,), (5, 2 * inputs)
    given, weight, bias, wide = (drawn(*size, dtype=dtype) for size in sizes)
    for more in (None, bias):
        whole = kernel.product(given, weight, more)
        hold(whole, defined(given, weight, more))
        for rows in range(1, 15):
            assert torch.equal(kernel.product(given[:rows], weight, more), whole[:rows])
    apart = wide[:, :inputs]
    assert torch.equal(kernel.product(apart, weight, None), kernel.product(apart.clone(), weight, None))
    assert kernel.product(given.view(3, 5, inputs), weight.T.contiguous().T, None).shape == (3, 5, outputs)


@pytest.mark.parametrize("inputs", [1, 40, 300])
@pytest.mark.parametrize("outputs", [1, 7, 260])
def test_every_kernel_multiplies_few_rows_however_they_lie(inputs: int, outputs: int) -> None:
    assert EVERY
    for dtype, kernel in EVERY:
        draw = partial(drawn, dtype=dtype)
        weights = nn.Parameter(draw(outputs, inputs)), draw(inputs, outputs).T, draw(outputs, 2 * inputs)[:, :inputs]
        shapes = ((1, inputs), (4, 1, inputs), (2, 3, inputs), (64, inputs))
        given = [part for shape in shapes for part in (draw(*shape), draw(*shape[:-1], 2 * inputs)[..., ::2])]
        for weight, rows, bias in itertools.product(weights, given, (None, draw(outputs))):
            with torch.no_grad():
                found = kernel.product(rows, weight, bias)
                hold(found, defined(rows, weight, bias))
                assert found.is_contiguous()


@pytest.mark.parametrize(("dtype", "each"), EVERY, ids=lambda part: getattr(part, "name", str(part)))
def test_numbers_that_are_not_finite_come_out(dtype: torch.dtype, each: KernelFunctions) -> None:
    given = drawn(3, 20, dtype=dtype)
    given[1, 4], given[2, 0] = torch.inf, torch.nan
    found = each.product(given, torch.ones(5, 20, dtype=dtype), None)
    assert found[0].isfinite().all() and (found[1] == torch.inf).all() and found[2].isnan().all()
    large = torch.full((1, 20), torch.finfo(dtype).max, dtype=dtype)
    assert (each.product(large, torch.ones(5, 20, dtype=dtype), None) == torch.inf).all()


def attended(query: Tensor, keys: Tensor, values: Tensor, rule: Scores) -> Tensor:
    """Return `[heads, new, dim]` for the last tokens of a text whose keys are `[heads, tokens, dim]`, in float64."""
    query, keys, values = (part.double() for part in (query, keys, values))
    groups, (new, total) = len(query) // len(keys), (query.shape[1], keys.shape[1])
    keys, values = (part.repeat_interleave(groups, 0) for part in (keys, values))
    scores = query @ keys.transpose(1, 2) * rule.scale
    scores = scores if rule.softcap is None else rule.softcap * torch.tanh(scores / rule.softcap)
    behind = torch.arange(total - new, total)[:, None] - torch.arange(total)
    seen = (behind >= 0) & (behind < (rule.window or total))
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values


@pytest.mark.parametrize("heads", [(4, 2, 64), (3, 3, 20), (8, 1, 128), (2, 2, 5)])
@pytest.mark.parametrize("rule", [Scores(0.3), Scores(0.2, window=9), Scores(0.5, softcap=2.0), Scores(0.4, window=1)])
def test_rows_attend_as_they_do_alone(
    kernel: Kernel, dtype: torch.dtype, heads: tuple[int, int, int], rule: Scores
) -> None:
    """Rows of any length with any number of new tokens, some of which continue one prompt."""
    many, few, dim = heads
    new, lengths, prompts, prompt_lengths = [1, 3, 1, 5, 2, 1], [0, 17, 40, 1, 16, 90], [-1, 1, -1, 0, 1, 1], [19, 32]
    draw = partial(drawn, dtype=dtype)
    held = [draw(6, few, 100, dim) for _ in range(2)]
    starts = [draw(2, few, 40, dim) + 1, draw(2, few, 40, dim) - 1]
    query = draw(sum(new), 1, many, dim).transpose(1, 2)
    key, value = (draw(sum(new), few, 1, dim) + shift for shift in (0.5, -0.5))
    first = torch.tensor([0, *new]).cumsum(0).tolist()

    def found(rows: list[int]) -> list[Tensor]:
        kept = Kept(*(part[rows].clone() for part in held), *starts, places_of(
            [new[row] for row in rows], [lengths[row] for row in rows], [prompts[row] for row in rows], prompt_lengths
        ))  # fmt: skip
        tokens = [token for row in rows for token in range(first[row], first[row + 1])]
        out = kernel.attend(query[tokens], key[tokens], value[tokens], kept, rule)
        for at, row in enumerate(rows):
            written = kept.keys[at, :, lengths[row] : lengths[row] + new[row]]
            assert torch.equal(written, key[first[row] : first[row + 1], :, 0].transpose(0, 1))
        return list(out[:, :, 0].split([new[row] for row in rows]))

    together = found(list(range(6)))
    for row, out in enumerate(together):
        begin = [
            part[prompts[row], :, : prompt_lengths[prompts[row]]] if prompts[row] >= 0 else part[0, :, :0]
            for part in starts
        ]
        own = slice(first[row], first[row + 1])
        whole = [
            torch.cat([start, kept[row, :, : lengths[row]], fresh[own, :, 0].transpose(0, 1)], 1)
            for start, kept, fresh in zip(begin, held, (key, value), strict=True)
        ]
        hold(out, attended(query[own, :, 0].transpose(0, 1), *whole, rule).transpose(0, 1))
        assert torch.equal(out, found([row])[0])
    assert all(
        torch.equal(one, other)
        for one, other in zip(found([5, 3, 1]), [together[row] for row in (5, 3, 1)], strict=True)
    )


def test_only_layers_that_compute_their_product_are_multiplied_by_the_kernel(
    kernel: Kernel, dtype: torch.dtype
) -> None:
    """A layer in whose place something else computes is left alone; one that trains between two passes has its new weight."""
    plain, other, sped = (nn.Linear(8, 4, dtype=dtype) for _ in range(3))
    sped.requires_grad_(False)
    other.forward = lambda given: given[..., :4] * 2  # type: ignore[method-assign]
    linear_products.multiply(nn.Sequential(sped))
    model, given = nn.ModuleList([plain, other, sped]), drawn(3, 8, dtype=dtype)
    before = [vars(layer).get("forward") for layer in model]
    with torch.no_grad(), few_row_products.CHOICES.untried():
        for scale in (1, 3):
            plain.weight.mul_(scale)
            expected = [layer(given) for layer in model]
            with FewRows(model):
                found = [layer(given) for layer in model]
                assert torch.equal(found[0], kernel.product(given, plain.weight, plain.bias))
            for one, wanted in zip(found, expected, strict=True):
                assert torch.allclose(one, wanted, atol=1e-6, rtol=4 * OFF[dtype])
            assert [vars(layer).get("forward") for layer in model] == before
        with pytest.raises(RuntimeError), FewRows(model):
            raise RuntimeError
    assert [vars(layer).get("forward") for layer in model] == before


def test_what_takes_the_place_of_a_layer_during_a_pass_stays(kernel: Kernel, dtype: torch.dtype) -> None:
    """As the layers of tenants, where a server prepares a model while another thread decodes with it."""
    layer, given = nn.Linear(8, 4, dtype=dtype), drawn(3, 8, dtype=dtype)
    with torch.no_grad(), few_row_products.CHOICES.untried():
        with FewRows(layer):
            own = layer.forward
            layer.forward = lambda given: own(given) + 1  # type: ignore[method-assign]
        assert torch.equal(layer(given), kernel.product(given, layer.weight, layer.bias) + 1)


@pytest.mark.skipif(decoding_kernels.kernel(torch.bfloat16) is None, reason="no compiler")
def test_under_autocast_layers_multiply_by_what_is_kept_of_their_weights() -> None:
    """The rounded weight where it is made once; elsewhere, and in a part that is not rounded, torch computes as before."""
    biased, plain, given = build("phi"), build("llama"), drawn(3, 32)
    with torch.no_grad(), few_row_products.CHOICES.untried(), torch.autocast("cpu", torch.bfloat16):
        for model, layer in ((biased, biased.lm_head), (plain, plain.model.layers[0].self_attn.q_proj)):
            before = layer(given)
            with FewRows(model):
                assert torch.equal(layer(given), before)
            rounded = [None if part is None else part.bfloat16() for part in (given, layer.weight, layer.bias)]
            with cast_once(model), FewRows(model):
                assert torch.equal(layer(given), few_row_products.chosen(3, rounded[1])(*rounded))
                with torch.autocast("cpu", enabled=False):
                    assert torch.equal(layer(given), nn.functional.linear(given, layer.weight, layer.bias))
    assert biased.lm_head.bias is not None and plain.model.layers[0].self_attn.q_proj.bias is None
