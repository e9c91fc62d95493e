"""Continuous batching: rows come and go at any step, each with options of its own, and say what they say alone."""

from __future__ import annotations

import pytest
import torch
from gym_torch_decoding import PROMPTS, BareTokenizer, kernels
from torch import Tensor

from gym_testkit.architectures import ready
from gym_torch.generation.cache_support import way_of
from gym_torch.generation.decoding import Decoding, Row
from gym_torch.generation.generator import Generator, decode_batch
from gym_torch.generation.prefix_cache import BLOCK, PrefixCache
from gym_torch.generation.sampling import SamplingOptions

__all__ = ["kernels"]
pytestmark = pytest.mark.usefixtures("kernels")

LONG = [(7 * place) % 47 + 3 for place in range(3 * BLOCK + 5)]


def session(prefixes: PrefixCache | None = None, family: str = "qwen3") -> Decoding:
    model = ready(family)
    return Decoding(model, way_of(model, 128, decode_batch), 128, prefixes=prefixes)


def through(batch: Decoding, *rows: Row) -> list[list[int]]:
    batch.admit(rows)
    while batch.rows:
        batch.step()
    return [row.completion.tokens for row in rows]


def alone(prompt: list[int], count: int, options: SamplingOptions, stream: int = 0) -> list[int]:
    made = Generator(ready("qwen3"), BareTokenizer()).generate(
        [prompt], count, options.temperature, options.top_p, options.seed, stop_ids=[], streams=[stream]
    )
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
    for family in ("qwen3", "gemma3_text"):
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
