"""Guesses at what a row says next change how long it takes and nothing that it says."""

from __future__ import annotations

import pytest
import torch
from gym_torch_decoding import PROMPTS, kernels
from torch import Tensor

from gym_testkit.architectures import VOCABULARY, ready
from gym_torch.generation.cache_support import cache_support_of
from gym_torch.generation.decoding import Decoding
from gym_torch.generation.drafts import MOST, WORDS, Drafts
from gym_torch.generation.generator import decode_batch
from gym_torch.generation.prefix_cache import PrefixCache
from gym_torch.generation.row import Row
from gym_torch.generation.sampling import SamplingOptions

__all__ = ["kernels"]
pytestmark = pytest.mark.usefixtures("kernels")

TEXT = [3 + (7 * place) % 23 for place in range(40)]


def session(family: str, guesses: int, prefixes: PrefixCache | None = None) -> Decoding:
    model = ready(family)
    return Decoding(model, cache_support_of(model, 128, decode_batch), 128, prefixes=prefixes, guesses=guesses)


def quoting(row: Row, wrong: int = 0) -> None:
    """Have a row say its prompt again, but for a token in so many, which the model draws."""

    def adjust(logits: Tensor) -> Tensor:
        place = len(row.completion.tokens)
        if wrong and place % wrong == wrong - 1:
            return logits
        return torch.full_like(logits, -torch.inf).index_fill(0, torch.tensor([row.prompt[place]]), 0.0)

    row.adjust = adjust


def said(batch: Decoding, *rows: Row) -> int:
    """Decode rows to their end; return how many passes that took."""
    passes = 0

    def counted(*_given: object) -> None:
        nonlocal passes
        passes += 1

    hook = batch.model.register_forward_pre_hook(counted)
    batch.admit(rows)
    while batch.rows:
        batch.step()
    hook.remove()
    return passes


@pytest.mark.parametrize("wrong", [0, 5])
@pytest.mark.parametrize("family", ["qwen3", "mistral", "gemma2", "phi"])
def test_a_row_says_the_same_in_fewer_passes(family, wrong):
    found, passes = [], []
    for guesses in (0, 3, MOST):
        row = Row(tuple(TEXT), 37, sampling=SamplingOptions(1.0, seed=4), stream=1, alternatives=2)
        quoting(row, wrong)
        passes.append(said(session(family, guesses), row))
        assert len(row.completion.tokens) == 37
        found.append(row)
    for other in found[1:]:
        assert other.completion.tokens == found[0].completion.tokens
        scores = torch.tensor([row.scores[place].log_prob for row in (found[0], other) for place in range(37)])
        assert torch.allclose(scores[:37], scores[37:], atol=1e-4)
    assert passes[0] == 37 and passes[2] <= passes[1] < 37 and (wrong or passes[2] < 10)


def test_rows_in_flight_are_given_guesses_each(kernels):
    """Rows that quote their prompts and get a token wrong now and then, some of them the same prompt, and end at other times."""
    found, passes = [], []
    for guesses in (0, MOST):
        rows = []
        for number, wrong in enumerate((0, 5, 7, 0, 6, 2)):
            turned = TEXT[number // 2 :] + TEXT[: number // 2]
            options = SamplingOptions(1.0, seed=4)
            row = Row(tuple(turned), 35 - 3 * number, sampling=options, stream=number, scope=number % 2 or None)
            quoting(row, wrong)
            rows.append(row)
        kept = PrefixCache(2**20)
        passes.append(said(session("qwen3", guesses, kept), *rows))
        found.append([row.completion for row in rows])
        again = Row((*rows[1].prompt, *rows[1].completion.tokens, 5), 6, scope=1)
        said(session("qwen3", 0, kept), again)
        fresh = Row(again.prompt, 6)
        said(session("qwen3", 0), fresh)
        assert again.reused > len(TEXT) and again.completion.tokens == fresh.completion.tokens
    for one, other in zip(*found, strict=True):
        assert one.tokens == other.tokens and one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
    assert passes[1] <= passes[0] - (8 if kernels else 0)


def test_what_the_model_says_by_itself_is_the_same():
    for options in (SamplingOptions(), SamplingOptions(0.3, seed=2), SamplingOptions(1.0, 0.9, seed=3)):
        rows = [Row(tuple(PROMPTS[1] * 3), 40, sampling=options) for _ in range(2)]
        for row, guesses in zip(rows, (0, MOST), strict=True):
            said(session("qwen3", guesses), row)
        assert rows[0].completion.tokens == rows[1].completion.tokens


def test_rows_that_come_and_go_beside_find_the_cache_as_it_should_be():
    rows = [Row(tuple(TEXT[start:] + TEXT[:start]), 30, scope="one") for start in (0, 9)]
    for row in rows:
        quoting(row, 4)
    said(session("qwen3", 0), *rows)
    expected = [row.completion.tokens for row in rows]
    first, second = (Row(row.prompt, 30, scope="one") for row in rows)
    prefixes = PrefixCache(2**20)
    batch = session("qwen3", MOST, prefixes)
    for row in (first, second):
        quoting(row, 4)
    batch.admit([first])
    for _ in range(6):
        batch.step()
    batch.admit([second])  # in the middle of what was guessed
    for _ in range(5):
        batch.step()
    batch.drop([first])
    while batch.rows:
        batch.step()
    assert second.completion.tokens == expected[1]
    assert first.completion.tokens == expected[0][: len(first.completion.tokens)]
    again = Row((*second.prompt, *second.completion.tokens, 5), 6, scope="one")
    said(batch, again)
    fresh = Row(again.prompt, 6)
    said(session("qwen3", 0), fresh)
    assert again.reused and again.completion.tokens == fresh.completion.tokens


def test_guesses_rest_the_longer_the_more_were_wrong():
    drafts, text = Drafts(8), [1, 2, 3, 4, 1, 2, 3]
    rested = []
    for _ in range(4):
        drafts.tokens = drafts.guess(text, 1)
        drafts.forget()
        rested.append(next(count for count in range(99) if not drafts.rests()))
    assert rested == [1, 3, 7, 15]
    drafts.tokens = drafts.guess(text, 2)
    assert drafts.tokens == [4] and not drafts.rests()
    drafts.tokens.pop()  # what was guessed is what was chosen
    drafts.forget()
    drafts.tokens = drafts.guess(text, 1)
    drafts.forget()
    assert drafts.rests() and not drafts.rests()


def test_a_guess_is_what_followed_last_and_wrong_ones_become_fewer():
    drafts = Drafts(8)
    text = [1, 2, 3, 4, 5, 1, 2, 3, 9, 8, 7, 1, 2, 3]
    assert WORDS == 3 and drafts.guess(text, 8) == [9, 8, 7, 1, 2, 3]
    assert drafts.guess([*text, 0], 8) == []
    for count in (7, 3, 1, 1):
        drafts.tokens = drafts.guess([*text, 0, 9, 8, 7], 8)
        assert drafts.tokens == [1, 2, 3, 0, 9, 8, 7][:count]
        assert drafts.forget() == count and not drafts.tokens
    assert max(TEXT) < VOCABULARY
