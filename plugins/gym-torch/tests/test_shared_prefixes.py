"""Samples that begin alike: their beginnings stand once, and nothing else about loss and gradient changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gym_torch_packed import assert_equal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gym_core import load_recipe
from gym_testkit.architectures import build
from gym_testkit.bench import Bench
from gym_torch.attention.segment_attention import NAME
from gym_torch.batch import Batch, Piece, packed
from gym_torch.model.loading import LoadedModel
from gym_torch.packing import PACKED, PADDED, Layout
from gym_torch.policy import Policy
from gym_torch.segment_spans import Spans
from gym_torch.shared_prefixes import LEAST, SHARED, split, training_layout

SYSTEM = list(range(3, 3 + LEAST))


def sample(tokens: list[int], learnt: int) -> Piece:
    """Return a sample of which all but `learnt` tokens at its end are a prompt."""
    trained = np.arange(len(tokens)) >= len(tokens) - learnt
    return Piece(f"sample {tokens[-1]}", np.array(tokens, np.int32), trained)


def texts(pieces: list[Piece], prefixes: tuple[int | None, ...]) -> list[tuple[list[int], list[bool]]]:
    """Return tokens of each segment with all that it continues, and whether each is learnt."""
    spans = Spans([len(each.tokens) for each in pieces], prefixes)
    found = []
    for number in range(len(pieces)):
        parts = [pieces[each] for each in spans.lineage(number)]
        found.append(
            (np.concatenate([p.tokens for p in parts]).tolist(), np.concatenate([p.trained for p in parts]).tolist())
        )
    return found


@st.composite
def batches(draw: st.DrawFn) -> list[Piece]:
    """Draw samples of few kinds of beginnings, some of which begin like others and some like nothing."""
    beginnings = [SYSTEM * 2, SYSTEM, SYSTEM + [1] * 20, SYSTEM + [1] * 20 + [2] * 20, SYSTEM[:-1], [1], []]
    found = []
    for number in range(draw(st.integers(1, 7))):
        begun = draw(st.sampled_from(beginnings))
        own = draw(st.lists(st.integers(0, 3), max_size=3))
        found.append(sample([*begun, *own, 40 + number], draw(st.integers(0, 25))))
    return found


@settings(max_examples=300, deadline=None)
@given(batches())
def test_every_sample_stays_what_it_was_and_no_beginning_is_left_twice(samples: list[Piece]) -> None:
    pieces, prefixes = split(samples)
    shared = len(pieces) - len(samples)
    assert [piece.id for piece in pieces[shared:]] == [each.id for each in samples]
    whole = [(each.tokens.tolist(), each.trained.tolist()) for each in samples]
    assert texts(pieces, prefixes)[shared:] == whole
    assert not any(piece.trained.any() for piece in pieces[:shared]), "a token would be learnt once for several samples"
    assert all(len(piece.tokens) for piece in pieces)
    for before in {None, *range(shared)}:  # what continues the same has too little in common
        ends = sorted(
            piece.tokens[: min(int(np.argmax([*piece.trained, True])), len(piece.tokens) - 1)].tolist()
            for piece, prefix in zip(pieces[shared:], prefixes[shared:], strict=True)
            if prefix == before
        )
        assert all(one[:LEAST] != other[:LEAST] or len(one) < LEAST for one, other in pairwise(ends))


def test_samples_that_each_go_on_with_the_one_before_make_a_chain() -> None:
    """A conversation with a row for each of its turns; more of them than calls may be nested."""
    turns = 1500
    pieces, prefixes = split([sample([*range(3, 3 + LEAST * (n + 1)), 1], 1) for n in range(turns)])
    assert sum(len(each.tokens) for each in pieces) == LEAST * turns + turns
    assert prefixes[:4] == (None, 0, 1, 2)


def test_a_beginning_of_a_sample_in_segments_is_shared_too() -> None:
    first, second = sample([*SYSTEM, 50], 1), sample([*SYSTEM, 51], 1)
    answer = sample([60, 61], 2)
    pieces, prefixes = split([first, answer, second], (None, 0, None))
    assert prefixes == (None, 0, 1, 0)
    assert [len(each.tokens) for each in pieces] == [LEAST, 1, 2, 1]


def test_loss_and_gradient_are_those_of_the_samples_apart() -> None:
    """Prefixes of prefixes too; `test_packing.py` holds one level for every architecture."""
    samples = [sample([*SYSTEM, *own], 2) for own in ([1, 2, 3], [9, 8, 7, 6], [*[2] * 20, 5, 6], [*[2] * 20, 7, 8])]
    samples.append(sample([7, 8, 9], 2))
    model = build("qwen3")
    model.set_attn_implementation(NAME)
    once, whole = packed(*split(samples)), packed(samples)
    assert once.size == whole.size - 3 * LEAST - 20

    def found(batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities, and the gradient of their weighted sum, flat."""
        model.zero_grad()
        log_probs = Policy(model)(batch)
        (log_probs * torch.linspace(0.5, 1.5, len(log_probs))).sum().backward()  # type: ignore[no-untyped-call]
        return log_probs.detach(), torch.cat(
            [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
        )

    assert_equal(found(once), found(whole))


def test_what_is_drawn_or_counted_for_each_sample_is_not_shared(bench: Bench) -> None:
    model = build("qwen3_moe")
    loaded = LoadedModel(model, Path("somewhere"), "a model", layout=PACKED)

    def chosen(algorithm: Any = "sft", loaded: LoadedModel = loaded, **more: str) -> Layout:
        return training_layout(load_recipe(bench.recipe(algorithm) | more), loaded, model)

    assert chosen() is chosen(adapter="lora") is SHARED
    assert chosen(loaded=replace(loaded, layout=PADDED)) is PADDED
    assert chosen("pretrain") is chosen(adapter="longlora") is PACKED
    for more in ({"neftune_noise_alpha": 5.0}, {"router_aux_loss_coef": 0.0}):
        assert chosen(loaded=replace(loaded, **more)) is PACKED
    model.model.layers[0].self_attn.attention_dropout = 0.1
    assert chosen() is PACKED
    assert chosen("asft") is SHARED  # which turns dropout off
    rewarded = {"name": "grpo", "rewards": [{"name": "exact"}]}
    assert chosen("dpo") is chosen(rewarded) is SHARED
    assert chosen(rewarded | {"routing_replay": True}) is PACKED


def told_to_be_short() -> list[dict[str, object]]:
    """Return rows of conversations that begin with one system prompt."""
    system = "You answer every question with one word, and never with more than that."
    turns = (("system", system), ("user", "{}?"), ("assistant", "{}"))
    return [
        {"messages": [{"role": role, "content": text.format(word)} for role, text in turns]}
        for word in ("one", "two", "three", "four")
    ]


def test_a_run_counts_the_tokens_of_its_samples(bench: Bench) -> None:
    """The same rows with and without dropout, which keeps them apart: as many tokens, and about the same first loss."""
    made = bench.recipe("sft", max_steps=2) | {"data": str(bench.file(told_to_be_short()))}
    lora = {"name": "lora", "rank": 2}
    once = bench.run(made | {"adapter": lora}, "once")
    apart = bench.run(made | {"adapter": lora | {"dropout": 1e-9}}, "apart")
    assert once.series("num_tokens") == apart.series("num_tokens")
    for key in ("loss", "grad_norm"):
        assert once.series(key) == pytest.approx(apart.series(key), rel=1e-5)


def test_an_adapter_that_looks_at_whole_samples_trains_on_rows_that_begin_alike(bench: Bench) -> None:
    made = bench.recipe("sft", max_steps=1) | {"data": str(bench.file(told_to_be_short()))}
    assert bench.run(made | {"adapter": {"name": "longlora", "rank": 2}}).series("loss")
