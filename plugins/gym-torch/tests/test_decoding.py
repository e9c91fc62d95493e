"""Continuous batching: rows come and go at any step, each with options of its own, and say what they say alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from gym_torch_decoding import PROMPTS, BareTokenizer, kernels
from torch import Tensor, nn
from transformers import DynamicCache

from gym_testkit import families
from gym_testkit.architectures import FAMILIES, build, ready
from gym_torch.generation.cache_support import CacheSupport, cache_support_of
from gym_torch.generation.decoding import Decoding
from gym_torch.generation.generator import Generator, decode_batch
from gym_torch.generation.kv_cache import RowCache
from gym_torch.generation.prefix_cache import BLOCK, PrefixCache
from gym_torch.generation.ragged_cache import RaggedCache
from gym_torch.generation.row import Row
from gym_torch.generation.sampling import SamplingOptions

__all__ = ["kernels"]
pytestmark = pytest.mark.usefixtures("kernels")

LONG = [(7 * place) % 47 + 3 for place in range(3 * BLOCK + 5)]


def session(prefixes: PrefixCache | None = None, family: str = "qwen3") -> Decoding:
    model = ready(family) if family in FAMILIES else families.build(family)
    return Decoding(model, cache_support_of(model, 128, decode_batch), 128, prefixes=prefixes)


def through(batch: Decoding, *rows: Row) -> list[list[int]]:
    batch.admit(rows)
    while batch.rows:
        batch.step()
    return [row.completion.tokens for row in rows]


def alone(prompt: list[int], count: int, options: SamplingOptions, stream: int = 0) -> list[int]:
    asked = {"temperature": options.temperature, "top_p": options.top_p, "seed": options.seed}
    made = Generator(ready("qwen3"), BareTokenizer()).generate([prompt], count, **asked, stop_ids=[], streams=[stream])
    return made[0].tokens


def test_rows_of_any_options_come_and_go_and_say_what_the_generator_says() -> None:
    """One row enters at each step, rows are dropped in the middle, and greedy, cold and hot ones are neighbours."""
    options = [SamplingOptions(), SamplingOptions(0.7, 0.8, seed=5), SamplingOptions(1.0, seed=9)]
    prompts = [[*prompt] for prompt in PROMPTS[:6]] * 2
    rows = [Row(tuple(prompt), 4 + n % 7, (), options[n % 3], stream=n) for n, prompt in enumerate(prompts)]
    batch = session()
    for number, row in enumerate(rows):
        batch.admit([row])
        batch.step()
        if number % 4 == 3:
            batch.drop([rows[number - 1], rows[number - 2]])
    while batch.rows:
        batch.step()
    for number, row in enumerate(rows):
        expected = alone(prompts[number], row.limit, row.sampling, number)
        assert row.completion.tokens == expected[: len(row.completion.tokens)]
        assert len(row.completion.tokens) == row.limit or number % 4 in (1, 2)


def test_logits_are_adjusted_for_the_rows_that_ask_for_it() -> None:
    def forced(logits: Tensor) -> Tensor:
        return torch.full_like(logits, -torch.inf).index_fill(0, torch.tensor([17]), 0.0)

    first, second = Row((4, 5), 3, adjust=forced, alternatives=2), Row((4, 5), 3)
    assert through(session(), first, second) == [[17] * 3, alone([4, 5], 3, SamplingOptions())]
    with torch.no_grad():
        scores = ready("qwen3")(torch.tensor([[4, 5]])).logits[0, -1].log_softmax(-1)
    assert abs(first.scores[0].log_prob - float(scores[17])) < 1e-4
    assert [token for token, _ in first.scores[0].top] == scores.topk(2).indices.tolist()
    assert not second.scores


def test_top_k_draws_from_the_likeliest_alone() -> None:
    with torch.no_grad():
        likeliest = set(ready("qwen3")(torch.tensor([[4, 5]])).logits[0, -1].topk(3).indices.tolist())
    rows = [Row((4, 5), 1, sampling=SamplingOptions(5.0, top_k=3), stream=stream) for stream in range(64)]
    assert {tokens[0] for tokens in through(session(), *rows)} == likeliest


def test_a_prefix_is_computed_once_and_changes_nothing() -> None:
    """Prompts that share beginnings, among others, one after another and together, with and without the cache."""
    prompts = [LONG, [*LONG[: 2 * BLOCK + 1], 5, 6], LONG[: BLOCK + 3], [9, 8, 7], [*LONG, 4], LONG[:BLOCK]]
    for family in ("qwen3", "gemma3_text", "deepseek_v3"):  # values of the last are narrower than keys
        plain = through(session(family=family), *(Row(tuple(prompt), 8) for prompt in prompts))
        kept = PrefixCache(2**24)
        assert through(session(kept, family), Row(tuple(LONG), 8, scope="ann")) == plain[:1]
        for _ in range(2):
            rows = [Row(tuple(prompt), 8, scope="ann") for prompt in prompts]
            assert through(session(kept, family), *rows) == plain
            assert [row.reused >= BLOCK for row in rows] == [True, True, True, False, True, False]


def test_what_was_said_is_a_prefix_of_the_next_turn() -> None:
    kept = PrefixCache(2**24)
    said = through(session(kept), Row(tuple(LONG), 30, scope="ann"))[0]
    following = Row((*LONG, *said, 5, 6, 7), 8, scope="ann")
    assert through(session(kept), following) == through(session(), Row(following.prompt, 8))
    assert following.reused > len(LONG)


def test_prefixes_are_of_their_scope_alone_and_within_their_bytes() -> None:
    kept = PrefixCache(2**24)
    through(session(kept), Row(tuple(LONG), 2, scope="ann"), Row(tuple(LONG[1:]), 2))
    assert kept.length("ann", LONG) == 3 * BLOCK
    assert kept.length("ben", LONG) == kept.length(None, LONG) == kept.length(None, LONG[1:]) == 0
    few = PrefixCache(kept.bytes * 2)
    for turn in range(8):
        through(session(few), Row((turn, *LONG), 2, scope="ann"))
        assert 0 < few.bytes <= few.limit
    assert few.length("ann", [7, *LONG]) == 3 * BLOCK and few.length("ann", [0, *LONG]) == 0


def test_a_cache_that_is_full_while_rows_enter_loses_no_tokens() -> None:
    """What was looked up for one group of prompts may be evicted by another before it is used."""
    size = PrefixCache(2**24)
    through(session(size), Row(tuple(LONG), 2, scope="ann"))
    kept = PrefixCache(size.bytes)
    through(session(kept), Row(tuple(LONG), 2, scope="ann"))
    other = [(11 * place) % 47 + 3 for place in range(3 * BLOCK + 5)]
    prompts = [other, [*LONG, 4], [*LONG[: BLOCK + 2], 5]]
    rows = [Row(tuple(prompt), 6, scope="ann") for prompt in prompts]
    assert through(session(kept), *rows) == through(session(), *(Row(tuple(prompt), 6) for prompt in prompts))


def test_what_prompts_have_in_common_is_computed_once_where_they_enter_together() -> None:
    """Only by those of one scope, and where it is long enough for a pass of its own."""
    common = [(5 * place) % 47 + 3 for place in range(90)]
    prompts = [[*common, 7, 8, 9], [*common, 4], [*common[:70], 11, 12], common[:40], [9, 8, 7]]
    plain = through(session(), *(Row(tuple(prompt), 6) for prompt in prompts))
    computed = {}
    for scopes in ("aaaaa", "abcde"):
        batch, rows = (
            session(PrefixCache(2**24)),
            [Row(tuple(p), 6, scope=s) for p, s in zip(prompts, scopes, strict=True)],
        )
        sizes: list[int] = []
        with batch.model.register_forward_pre_hook(
            lambda module, args, kwargs, sizes=sizes: sizes.append(kwargs["input_ids"].numel()), with_kwargs=True
        ):
            batch.admit(rows)
        computed[scopes] = sum(sizes)
        while batch.rows:
            batch.step()
        assert [row.completion.tokens for row in rows] == plain
    assert computed["aaaaa"] < computed["abcde"] - 100


@pytest.mark.parametrize("ragged", [True, False])
def test_what_is_kept_of_a_row_that_ends_amid_guesses_is_its_text(ragged: bool) -> None:
    """A row that repeats itself and then ends otherwise than was guessed."""
    period, stop = [5, 9, 13, 17, 21], 2
    row = Row(tuple(LONG[:20] + 3 * period), 60, (stop,), scope="ann")

    def said(logits: Tensor) -> Tensor:
        made = len(row.completion.tokens)
        wanted = torch.tensor([stop if made == 25 else period[made % 5]])
        return torch.full_like(logits, -torch.inf).index_fill(0, wanted, 0.0)

    row.adjust = said
    model, prefixes = ready("qwen3"), PrefixCache(2**20)
    way = replace(cache_support_of(model, 128, decode_batch), ragged=ragged)
    through(Decoding(model, way, 128, prefixes=prefixes), row)
    text = [*row.prompt, *row.completion.tokens]
    kept = prefixes.length("ann", [*text, 1])
    assert len(row.completion.tokens) == 26 and kept > len(row.prompt)
    with torch.no_grad():
        whole = model(torch.tensor([text]), use_cache=True).past_key_values
    for layer, found in zip(whole.layers, prefixes.take([("ann", [*text, 1], kept)]), strict=True):
        for part, wanted in zip(found, (layer.keys, layer.values), strict=True):
            assert torch.allclose(part[0], wanted[0, :, :kept], atol=1e-4)


def test_numbers_that_are_not_finite_stay_in_their_row() -> None:
    """A short row enters where a longer one, the numbers of which were none, has left."""
    model, now = build("qwen3", None), [list[Hashable]()]

    def break_some(_layer: nn.Module, _given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return out.masked_fill(torch.tensor([key == "broken" for key in now[0]])[:, None, None], torch.nan)

    @contextmanager
    def around(keys: list[Hashable]) -> Iterator[None]:
        now[0] = keys
        yield

    model.model.layers[0].self_attn.v_proj.register_forward_hook(break_some)
    model.model.layers[0].self_attn.k_proj.register_forward_hook(break_some)

    def said(broken: bool) -> list[int]:
        batch = Decoding(model, CacheSupport(True), 200, around=around)
        batch.admit([Row(tuple(LONG[:37]), 12, key="long")])
        if broken:
            other = Row(tuple(LONG[1:38]), 12, key="broken")
            batch.admit([other])
            batch.step()
            batch.drop([other])
        return through(batch, Row((5, 6, 7), 6, key="short"))[0]

    assert said(True) == said(False)


@pytest.mark.parametrize("cache", [RowCache, RaggedCache])
def test_rows_that_cannot_enter_leave_those_in_flight_as_they_were(cache: type[RowCache] | type[RaggedCache]) -> None:
    def enter(into: RowCache | RaggedCache, given: DynamicCache) -> None:
        width = given.get_seq_length()
        if isinstance(into, RowCache):
            into.append(given, torch.tensor([0, 0, 1]))
        else:
            into.append(given, [width, width], [0, 0, 1])

    def held(of: RowCache | RaggedCache) -> list[Tensor]:
        if isinstance(of, RowCache):
            return [part.clone() for layer in of.layers for part in (layer.keys, layer.values)]
        return [part.clone() for row in range(len(of.lengths)) for pair in of.text(row) for part in pair]

    kept = RowCache() if cache is RowCache else RaggedCache(torch.float32)
    enter(kept, drawn((2, 2), 9))
    before = held(kept)
    for width in (4, 300):
        with pytest.raises(RuntimeError):
            enter(kept, drawn((2, 3), width))  # the second layer has another number of heads
        assert all(torch.equal(one, other) for one, other in zip(held(kept), before, strict=True))
    enter(kept, drawn((2, 2), 9))
    assert all(torch.equal(one[:3], other) for one, other in zip(held(kept), before, strict=False))


def drawn(heads: tuple[int, int], width: int) -> DynamicCache:
    draws, found = torch.Generator().manual_seed(width), DynamicCache()
    for layer, count in enumerate(heads):
        found.update(*torch.randn(2, 2, count, width, 8, generator=draws), layer)
    return found
