"""TDPO on a model: all that it and its reference say of a token, a few tokens at a time."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gym_core import load_recipe
from gym_preference.tdpo.objective import TokenKLPolicy
from gym_testkit.bench import Bench
from gym_testkit.oracle import compare
from gym_torch.batch import Batch, Piece, packed
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED
from gym_torch.policy import Policy
from gym_torch.reference import Scorer

LENGTHS = (9, 4, 12)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def batch() -> Batch:
    random = np.random.default_rng(0)
    return packed([Piece(str(n), random.integers(3, 60, n).astype(np.int32), np.ones(n, dtype=bool)) for n in LENGTHS])


def models(path: Path) -> tuple[TokenKLPolicy, Policy]:
    """Return a policy and a reference that is a little different."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    other = deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.2 * weight.std() * torch.randn_like(weight)
    assert layout_for(model) is PACKED and layout_for(other) is PACKED
    return TokenKLPolicy(model), Policy(other)


def whole(policy: Policy, batch: Batch) -> torch.Tensor:
    """Return all log-probabilities, segment by segment and from full logits, `[n, vocabulary]`."""
    parts = [batch.tokens[:, each.start : each.stop] for each in batch.segments]
    return torch.cat([policy.model(input_ids=part).logits[0, :-1].double().log_softmax(-1) for part in parts])


def test_it_says_what_full_logits_say(model_path: Path) -> None:
    policy, frozen = models(model_path)
    policy.reference = Scorer(frozen)
    found = policy(batch())
    own, other = whole(policy, batch()), whole(frozen, batch()).detach()
    places = batch().targets[:, None]
    wanted = torch.stack(
        [own.gather(1, places)[:, 0], other.gather(1, places)[:, 0], (other.exp() * (other - own)).sum(1)]
    )
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)
    factors = torch.randn_like(found[[0, 2]])
    ours = torch.autograd.grad((found[[0, 2]] * factors).sum(), list(policy.parameters()))
    theirs = torch.autograd.grad((wanted[[0, 2]] * factors).sum(), list(policy.parameters()))
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    assert not any(weight.grad is not None for weight in frozen.parameters())


def test_the_logits_of_a_few_tokens_exist_at_a_time_and_change_nothing(model_path: Path) -> None:
    policy, frozen = models(model_path)
    policy.reference = Scorer(frozen)
    at_once = policy(batch())
    gradient = torch.autograd.grad(at_once.sum(), list(policy.parameters()))
    seen: list[int] = []
    for each in (policy, frozen):
        each.model.get_output_embeddings().register_forward_hook(lambda _, __, out: seen.append(len(out)))
    policy.chunk = 8  # rows of logits, of both models together
    found = policy(batch())
    again = torch.autograd.grad(found.sum(), list(policy.parameters()))
    assert max(seen) == 4 and sum(seen) > 2 * found.shape[1], "the backward pass computes them again"
    torch.testing.assert_close(found, at_once)
    for one, two in zip(again, gradient, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"name": "tdpo1", "ftx": 0.2}, {"name": "tdpo2", "alpha": 0.0}, {"name": "tdpo2", "alpha": 2.0}]
)
def test_it_agrees_with_the_oracle_whatever_the_options(bench: Bench, options: dict[str, Any]) -> None:
    value, gradient = compare(load_recipe(bench.recipe(options, "preference")), bench)
    assert value <= 1e-5 and gradient <= 1e-4


@pytest.mark.parametrize("adapter", ["lora", None])
def test_tdpo2_without_alpha_trains_as_dpo_does(bench: Bench, adapter: str | None) -> None:
    runs = []
    for options in ({"name": "dpo"}, {"name": "tdpo2", "alpha": 0.0}, {"name": "tdpo2"}):
        made = bench.recipe(options, "preference", learning_rate=0.03 if adapter else 0.003)
        made |= {"adapter": adapter} if adapter else {}
        runs.append(bench.run(made, str(len(runs)), max_steps=5))
    for key in ("loss", "rewards/margins", "rewards/chosen"):
        assert runs[0].series(key) == pytest.approx(runs[1].series(key), rel=1e-4, abs=1e-5), key
    assert runs[2].series("loss")[-1] != pytest.approx(runs[0].series("loss")[-1], rel=1e-3)
    for key in ("kl/chosen", "kl/rejected"):
        assert runs[1].series(key)[0] == pytest.approx(0, abs=1e-5) and runs[1].series(key)[-1] > 1e-4
