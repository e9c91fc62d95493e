"""The kernel for attention in packed rows: exact attention within rounding, alone as beside others, in every family."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from gym_torch_packed import losses, separate, shared
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from gym_testkit import architectures
from gym_torch.attention import fused_attention, segment_attention
from gym_torch.attention.fused_attention import FLAGS, SOURCE, Kernel
from gym_torch.batch import packed, padded
from gym_torch.kernels import fused_modules, native_code
from gym_torch.kernels.kernel_functions import Scores
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED
from gym_torch.segment_spans import Spans

OFF = {torch.bfloat16: 4e-3, torch.float32: 1e-6}  #: largest error, relative
#: Largest difference of whole models between two ways to compute them.
ROUNDED = {torch.bfloat16: 2e-3, torch.float32: 2e-6}
#: The size of what is 0 by the definition, of that of the largest part.
ZERO = {torch.bfloat16: 1e-2, torch.float32: 1}


@pytest.fixture(
    scope="module",
    params=[
        (torch.bfloat16, ()),
        (torch.bfloat16, ("-mno-amx-bf16",)),
        (torch.bfloat16, ("-DGYM_PLAIN",)),
        (torch.float32, ()),
        (torch.float32, ("-mno-avx512f",)),
    ],
    ids=["bf16", "bf16, no tiles", "bf16, plain", "fp32", "fp32, no AVX-512"],
)
def built(request: pytest.FixtureRequest) -> tuple[Kernel, torch.dtype]:
    """Return a kernel, and the precision that it is for."""
    dtype, flags = request.param
    found = native_code.library(SOURCE, (*native_code.THIS_MACHINE, *FLAGS[dtype], *flags))
    if found is None:
        pytest.skip("no compiler, or one for another kind of processor")
    return Kernel(found), dtype


@pytest.fixture
def always() -> Iterator[None]:
    """Let the kernel attend whatever a trial says."""
    if fused_attention.kernel(torch.bfloat16) is None:
        pytest.skip("no compiler")
    fused_attention.CHOICES.always = True
    yield
    fused_attention.CHOICES.always = None


def drawn(
    lengths: tuple[int, ...], heads: tuple[int, int], dim: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, ...]:
    """Return queries, keys, values and the gradient of what comes out, `[1, heads, tokens, dim]`."""
    draws = torch.Generator().manual_seed(sum(lengths))
    sizes = heads[0], heads[1], heads[1], heads[0]
    wide = [torch.randn(1, sum(lengths), size, dim, generator=draws) for size in sizes]
    return tuple(part.to(dtype).transpose(1, 2) for part in wide)


def attended(kernel: Kernel, given: tuple[Tensor, ...], spans: Spans, scores: Scores) -> list[Tensor]:
    *leaves, gradient = (part.detach().clone().requires_grad_() for part in given)
    out = kernel.attend(*leaves, spans, scores)
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient.detach())]


def exact(given: tuple[Tensor, ...], spans: Spans, scores: Scores) -> list[Tensor]:
    """Attention by its definition, in float64 (arXiv:1706.03762, section 3.2.1)."""
    *leaves, gradient = (part.detach().double().requires_grad_() for part in given)
    query, key, value = leaves
    groups = query.shape[1] // key.shape[1]
    products = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * scores.scale
    if scores.softcap:
        products = scores.softcap * torch.tanh(products / scores.softcap)
    places = torch.arange(products.shape[-1])
    seen = spans.mask(scores.window, products.device)(None, None, places[:, None], places[None])
    weights = products.masked_fill(~seen, -torch.inf).softmax(-1)
    out = weights @ value.repeat_interleave(groups, 1)
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient.detach())]


@pytest.mark.parametrize(
    ("lengths", "prefixes", "heads", "dim", "scores"),
    [
        ((150, 33, 1, 64), (), (8, 4), 64, Scores(0.125)),
        ((70, 30, 90, 40, 10), (None, 0, 0, 2, None), (4, 1), 24, Scores(0.3)),
        ((170, 30, 190, 40), (None, 0, 0, 2), (3, 3), 128, Scores(0.2, softcap=5.0)),
        ((170, 30, 190, 140, 100), (None, 0, 0, 2, None), (6, 2), 40, Scores(0.2, window=57, softcap=20.0)),
        ((300,), (), (2, 2), 8, Scores(0.5, window=64)),
        ((129, 65), (None, 0), (2, 1), 256, Scores(0.0625, window=1)),
    ],
    ids=["segments", "prefixes", "cap", "window and cap", "window", "only itself"],
)
def test_value_and_gradient_are_those_of_the_definition(built, lengths, prefixes, heads, dim, scores):
    kernel, dtype = built
    given, spans = drawn(lengths, heads, dim, dtype), Spans(lengths, prefixes)
    wanted = exact(given, spans, scores)
    largest = max(float(part.norm()) for part in wanted)
    for found, true in zip(attended(kernel, given, spans, scores), wanted, strict=True):
        assert found.shape == true.shape and found.isfinite().all()
        # A gradient may be 0 by the definition, as that of a token that sees itself alone.
        assert float((found.double() - true).norm()) < OFF[dtype] * (float(true.norm()) or ZERO[dtype] * largest)


def test_large_scores_stay_finite(built):
    kernel, dtype = built
    given = tuple(30 * part for part in drawn((40, 90), (2, 1), 16, dtype))
    spans, scores = Spans((40, 90)), Scores(1.0)
    for found, true in zip(attended(kernel, given, spans, scores), exact(given, spans, scores), strict=True):
        assert found.isfinite().all()
        assert float((found.double() - true).norm()) <= 2e-2 * float(true.norm())


def test_large_scores_keep_their_digits(built):
    """Weights of forward and backward are rounded alike: the normalizer of one must fit the scores of the other."""
    kernel, dtype = built
    *given, by_out = drawn((150, 60, 33), (4, 2), 64, dtype)
    given, spans, scores = (30 * given[0], 30 * given[1], given[2], by_out), Spans((150, 60, 33)), Scores(0.125)
    wanted, own = exact(given, spans, scores), attended(kernel, given, spans, scores)
    *leaves, _ = (part.detach().requires_grad_() for part in given)
    out = segment_attention.piecewise(*leaves, spans, scores)
    theirs = [out.detach(), *torch.autograd.grad(out, leaves, by_out)]
    for found, other, true in zip(own, theirs, wanted, strict=True):
        off = [float((part.double() - true).norm() / true.norm()) for part in (found, other)]
        assert off[0] < 2 * off[1], off


def test_a_number_that_is_not_finite_is_not_hidden(built):
    kernel, dtype = built
    query, key, value, gradient = drawn((40, 30), (2, 1), 16, dtype)
    key = key.clone()
    key[0, 0, 3, 5] = torch.nan
    out, *gradients = attended(kernel, (query, key, value, gradient), Spans((40, 30)), Scores(0.25))
    assert out[0, :, 3:40].isnan().all() and out[0, :, :3].isfinite().all() and out[0, :, 40:].isfinite().all()
    assert all(part[0, :, :40].isnan().any() for part in gradients)


def test_a_segment_has_the_same_bits_alone_and_in_any_number_of_threads(built):
    kernel, dtype = built
    lengths, prefixes = (90, 150, 20, 70), (None, None, 1, None)
    given, scores, threads = drawn(lengths, (4, 2), 32, dtype), Scores(0.2), torch.get_num_threads()
    together = attended(kernel, given, Spans(lengths, prefixes), scores)
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            for whole, other in zip(together, attended(kernel, given, Spans(lengths, prefixes), scores), strict=True):
                assert torch.equal(whole, other)
    finally:
        torch.set_num_threads(threads)
    for start, stop, alone in ((0, 90, Spans((90,))), (90, 260, Spans((150, 20), (None, 0))), (260, 330, Spans((70,)))):
        part = tuple(each[:, :, start:stop] for each in given)
        for whole, own in zip(together, attended(kernel, part, alone, scores), strict=True):
            assert torch.equal(whole[:, :, start:stop], own)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("batch_of", [separate(), shared()], ids=["separate", "shared prefix"])
@pytest.mark.parametrize("name", architectures.FAMILIES)
def test_every_family_is_as_near_to_padding_with_all_kernels_as_without_one(name, batch_of, dtype, always, monkeypatch):
    model = architectures.build(name)
    monkeypatch.setattr(fused_modules.CHOICES, "always", False)
    wanted = losses(model, batch_of, padded)
    assert layout_for(model) is PACKED
    errors = {}
    for kernel in (True, False):
        fused_attention.CHOICES.always = fused_modules.CHOICES.always = kernel
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            found = losses(model, batch_of, packed)
        errors[kernel] = [float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)]
    both = zip(errors[True], errors[False], strict=True)
    assert all(mine <= 1.3 * theirs + ROUNDED[dtype] for mine, theirs in both), errors


def test_a_shape_is_tried_where_it_is_first_met_and_whatever_looks_on(tmp_path, monkeypatch):
    if fused_attention.kernel(torch.bfloat16) is None:
        pytest.skip("no compiler")
    monkeypatch.setenv("GYM_CACHE", str(tmp_path))
    query, key, _, _ = drawn((150, 60, 33, 70), (4, 4), 16)
    seen: list[Tensor] = []

    def pack(kept: Tensor) -> Tensor:
        seen.append(kept)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):  # as those of layers that compute again
        fused_attention.chosen(query, key, Spans((150, 60, 33, 70)), Scores(0.25), segment_attention.piecewise)
    assert not seen and list((tmp_path / "probe").iterdir())


def test_tensors_without_memory_are_traced_as_torch_attends(always):
    with FakeTensorMode():
        query, key, value, _ = drawn((30, 40), (2, 1), 16)
        out, _ = segment_attention.segment_attention(
            torch.nn.Identity(), query, key, value, None, spans=Spans((30, 40))
        )
    assert out.shape == (1, 70, 2, 16)


def test_values_of_another_size_than_keys_are_attended_to_by_torch(always):
    query, key, value, _ = drawn((5, 9), (4, 4), 16)
    narrow, spans = value[..., :8], Spans((5, 9))
    found, _ = segment_attention.segment_attention(torch.nn.Module(), query, key, narrow, None, spans=spans)
    wanted = segment_attention.piecewise(query, key, narrow, spans, Scores(16**-0.5)).transpose(1, 2)
    assert torch.equal(found, wanted)
