"""FlashAttention and FlexAttention are asked for what attention in packed rows is, and tried before they work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gym_accel import FlashAttention2, FlashAttention3, FlexAttention, VarlenAttention
from gym_accel.attention_functions import by_rows, flash_rows, varlen_rows
from gym_core import GymError, Run, load_recipe
from gym_core.record import RunRecord
from gym_torch.attention import block_attention, segment_attention
from gym_torch.attention.fused_attention import CHOICES
from gym_torch.kernels.kernel_functions import Scores
from gym_torch.kernels.kernel_trials import TRIALS, with_gradients
from gym_torch.segment_spans import Spans

LIBRARIES = FlashAttention2(), FlashAttention3(), VarlenAttention(), FlexAttention(mode="default")
RECIPE = {"model": {"path": "tiny"}, "data": "rows.jsonl", "algorithm": "sft"}
ROWS: dict[str, tuple[Spans, Scores]] = {
    "segments": (Spans((150, 33, 1, 64)), Scores(0.25)),
    "prefixes": (Spans((70, 30, 190, 40, 10), (None, 0, 0, 2, None)), Scores(0.3)),
    "window": (Spans((170, 30, 140, 40), (None, 0, 0, 2)), Scores(0.2, window=57)),
    "only itself": (Spans((40, 65), (None, 0)), Scores(0.25, window=1)),
    "cap": (Spans((130, 130), (None, 0)), Scores(0.3, window=100, softcap=3.0)),
}


def drawn(spans: Spans, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[Tensor]:
    """Return queries of four heads, keys and values of two, and the gradient of what comes out."""
    draws = torch.Generator().manual_seed(sum(spans.lengths))
    wide = [torch.randn(1, sum(spans.lengths), heads, 16, generator=draws) for heads in (4, 2, 2, 4)]
    return [part.to(device, dtype).transpose(1, 2) for part in wide]


def exact(query: Tensor, key: Tensor, value: Tensor, spans: Spans, scores: Scores) -> Tensor:
    """Attention by its definition (arXiv:1706.03762, section 3.2.1), where `Spans.mask` says who sees whom."""
    key, value = (part.repeat_interleave(2, 1) for part in (key, value))
    products = query @ key.transpose(2, 3) * scores.scale
    if scores.softcap:
        products = scores.softcap * torch.tanh(products / scores.softcap)
    places = torch.arange(products.shape[-1], device=query.device)
    seen = spans.mask(scores.window, query.device)(None, None, places[:, None], places[None])
    return products.masked_fill(~seen, -torch.inf).softmax(-1) @ value


def told(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    softmax_scale: float, causal: bool, window_size: tuple[int, int], softcap: float, deterministic: bool,
) -> Tensor:  # fmt: skip
    """What FlashAttention-2 and 3 say that `flash_attn_varlen_func` computes, one pair of a query and a key after another."""
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32 and causal and deterministic
    assert cu_seqlens_q.diff().max() == max_seqlen_q and cu_seqlens_k.diff().max() == max_seqlen_k
    out = []
    for number in range(len(cu_seqlens_q) - 1):
        rows, seen = (slice(int(cu[number]), int(cu[number + 1])) for cu in (cu_seqlens_q, cu_seqlens_k))
        known, content = (part[seen].repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[rows], known) * softmax_scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        query, key = (torch.arange(count) for count in scores.shape[1:])
        apart = query[:, None] + len(key) - len(query) - key
        inside = (apart >= 0) & ((apart <= window_size[0]) if window_size[0] >= 0 else True)
        out.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~inside, -torch.inf).softmax(-1), content))
    return torch.cat(out)


@pytest.mark.parametrize("row", ROWS)
def test_flash_attention_is_asked_for_attention_in_packed_rows(row):
    spans, scores = ROWS[row]
    *given, by_out = drawn(spans)
    attention = by_rows(flash_rows(told, deterministic=True), caps=True)
    found = with_gradients(lambda *given: attention(*given, spans, scores), given, by_out)
    for one, true in zip(found, with_gradients(partial(exact, spans=spans, scores=scores), given, by_out), strict=True):
        torch.testing.assert_close(one, true, rtol=0, atol=1e-10)


@pytest.mark.parametrize("row", ROWS)
def test_flex_attention_is_asked_for_attention_in_packed_rows(row):
    """Not compiled, as a CPU has no gradient of it."""
    spans, scores = ROWS[row]
    *given, _ = drawn(spans)
    found = block_attention.attend(*given, spans, scores)
    torch.testing.assert_close(found, exact(*given, spans, scores), rtol=0, atol=1e-10)


@pytest.mark.parametrize("row", ROWS)
def test_the_flash_attention_of_torch_takes_what_it_is_given(row):
    """On tensors without data; with a cap, which it does not know, another has to attend."""
    spans, scores = ROWS[row]
    query, key, value, _ = (part.to("meta", torch.bfloat16) for part in drawn(spans))
    found = by_rows(varlen_rows, caps=False)(query, key, value, spans, scores)
    assert found is None if scores.softcap else found is not None and found.shape == query.shape


def test_no_flash_attention_is_asked_for_heads_that_it_has_not():
    wide = torch.empty(1, 2, 9, 320)
    assert by_rows(flash_rows(told, deterministic=True), caps=True)(wide, wide, wide, Spans([9]), Scores(1.0)) is None


@pytest.mark.parametrize("config", [FlashAttention2(), FlashAttention3()], ids=["2", "3"])
def test_a_package_that_is_not_there_is_named_and_one_that_is_there_used(config, tmp_path, monkeypatch):
    with pytest.raises(GymError, match=config.package) as caught:
        config.check()
    assert config.install in str(caught.value) and config.missing() == config.gpu
    (tmp_path / f"{config.package}.py").write_text("def flash_attn_varlen_func(q, *more, **named): return q")
    monkeypatch.syspath_prepend(tmp_path)
    config.check()
    made = config.build()
    query, key, value, _ = drawn(Spans([5]))
    assert torch.equal(made.attention(query, key, value, Spans([5]), Scores(1.0)), query)
    assert made.dtypes == {torch.float16, torch.bfloat16} and made.devices == {"cuda"}
    other = type(config)(deterministic=False).build()
    assert made.name != other.name, "a trial of one says nothing of the other"
    del sys.modules[config.package]  # which is not there for others


def trials(tmp_path: Any, attention: Callable[..., Any], scores: Scores, prefixes: tuple[int | None, ...]) -> list[str]:
    """Return what a run notes of a kernel for attention."""
    run = Run(load_recipe(RECIPE | {"output": str(tmp_path)}), tmp_path, RunRecord(tmp_path / "run.json"))
    made = FlexAttention().build()
    library = type(made)("theirs", "1", frozenset({"cpu"}), made.dtypes, attention=attention)
    spans = Spans((150, 60, 33, 70), prefixes)
    query, key, value, _ = drawn(spans, torch.float16)
    with CHOICES.kept(run, [library]):
        segment_attention.segment_attention(
            torch.nn.Module(),
            query,
            key,
            value,
            None,
            spans=spans,
            sliding_window=scores.window,
            softcap=scores.softcap,
        )
    return [f"{name}: {line}" for name, lines in run.record.read()[TRIALS].items() for line in lines]


@pytest.mark.parametrize(
    ("wrong", "scores", "prefixes", "name"),
    [
        ({"window": None}, Scores(1.0, window=9), (), "window 9"),
        ({"softcap": None}, Scores(1.0, softcap=2.0), (), "cap"),
        ({}, Scores(1.0), (None, 0, 0, 0), "continued"),
    ],
)
def test_what_a_library_leaves_out_is_found_where_it_counts(tmp_path, monkeypatch, wrong, scores, prefixes, name):
    """A window, a cap, or what a segment continues: each is tried where a model has it."""
    monkeypatch.setenv("GYM_CACHE", str(tmp_path))

    def careless(query: Tensor, key: Tensor, value: Tensor, spans: Spans, scores: Scores) -> Tensor:
        rule = Scores(scores.scale, **({"window": scores.window, "softcap": scores.softcap} | wrong))
        return segment_attention.piecewise(query, key, value, Spans(spans.lengths), rule)

    (line,) = trials(tmp_path, careless, scores, prefixes)
    assert name in line and "theirs: refused, its error is" in line


@pytest.mark.gpu
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("config", LIBRARIES, ids=lambda config: type(config).__name__)
def test_a_library_attends_as_defined_on_a_gpu(config, row):
    if config.missing():
        pytest.skip(config.missing())
    try:
        config.check()
    except GymError as error:
        pytest.skip(str(error))
    spans, scores = ROWS[row]
    *given, by_out = drawn(spans, torch.bfloat16, "cuda")
    own = config.build().attention
    if own(*given, spans, scores) is None:
        assert scores.softcap
        return
    found = with_gradients(lambda *given: own(*given, spans, scores), given, by_out)
    wide = [part.double() for part in given]
    wanted = with_gradients(partial(exact, spans=spans, scores=scores), wide, by_out.double())
    largest = max(float(part.norm()) for part in wanted)
    for one, true in zip(found, wanted, strict=True):
        assert float((one.double() - true).norm()) < 1e-2 * max(float(true.norm()), 1e-2 * largest)
