"""Sampling: shares follow the probabilities, whatever the size of the vocabulary."""

from __future__ import annotations

import pytest
import torch

from gym_torch.generation.sampling import BLOCK, choose, uniform
from gym_torch.model.log_probs import Head, nucleus_log_probs
from gym_torch.model.nucleus import drawable, nucleus_tokens

COUNT = 20_000


def draws(seed: int) -> list[float]:
    return [uniform(seed, number, 3) for number in range(COUNT)]


def chi_square(tokens: torch.Tensor, probs: torch.Tensor) -> float:
    """Return Pearson's statistic in units of its standard deviation, over the tokens expected at least 5 times."""
    expected = probs.double() * len(tokens)
    often = expected >= 5
    found = tokens.bincount(minlength=len(probs))
    freedom = int(often.sum()) - 1
    statistic = float(((found[often] - expected[often]) ** 2 / expected[often]).sum())
    return (statistic - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("vocabulary", [4, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 7])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_shares_pass_a_chi_square_test(vocabulary: int, temperature: float) -> None:
    logits = 2 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    tokens, log_probs = choose(logits.expand(COUNT, -1), temperature, 1.0, draws(1))
    probs = (logits / temperature).softmax(-1)
    assert abs(chi_square(tokens, probs)) < 4
    assert torch.allclose(log_probs, probs.log()[tokens], atol=1e-5)
    wrong = (logits / (temperature * 1.2)).softmax(-1)
    assert chi_square(tokens, wrong) > 4, "the test must be able to fail"


def test_top_p_cuts_the_tail_and_nothing_else() -> None:
    logits = torch.tensor([0.0, 2.0, -1.0, 1.0])
    tokens, log_probs = choose(logits.expand(COUNT, 4), 1.0, 0.8, draws(2))
    kept = torch.tensor([0.0, 1.0, 0.0, 1.0]) * logits.softmax(-1)
    assert set(tokens.tolist()) == {1, 3}
    assert abs(chi_square(tokens, kept / kept.sum())) < 4
    assert torch.allclose(log_probs, (kept / kept.sum()).log()[tokens], atol=1e-6)


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        ({"top_k": 2}, {1, 3}),
        ({"min_p": 0.13}, {0, 1, 3}),
        ({"min_p": 0.14}, {1, 3}),
        ({"top_k": 3, "min_p": 0.14}, {1, 3}),
        ({"top_k": 2, "min_p": 0.01}, {1, 3}),
        ({"top_k": 2, "top_p": 0.7}, {1}),
        ({"min_p": 0.13, "top_p": 0.905}, {1, 3}),
    ],
    ids=str,
)
def test_what_cannot_be_drawn_is_what_the_trainer_leaves_out(cut: dict[str, float], left: set[int]) -> None:
    """`top_p` is a share of what the others leave: of 0.657, 0.242, 0.089 and 0.012 the first is 0.731 of the first two."""
    logits = torch.tensor([0.0, 2.0, -2.0, 1.0])  # exp(-2) is 0.135
    options = {"top_p": 1.0, "top_k": 0, "min_p": 0.0} | cut
    tokens, log_probs = choose(
        logits.expand(COUNT, 4), 1.0, options["top_p"], draws(5), options["top_k"], options["min_p"]
    )
    assert set(tokens.tolist()) == left
    kept = drawable(logits[None], **options)[0]
    assert set(kept.nonzero()[:, 0].tolist()) == left
    assert torch.allclose(log_probs, logits.masked_fill(~kept, -torch.inf).log_softmax(-1)[tokens], atol=1e-6)


def test_a_head_of_few_bits_is_cut_where_the_sampler_cuts() -> None:
    """Rounded again after it is divided by the temperature, tokens that differ would be equally likely to the trainer."""
    logits = 8 * torch.randn(200, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    head, labels = Head(torch.nn.Identity(), temperature=0.7), logits.argmax(1)
    found = nucleus_tokens(logits, head, labels, top_k=5)
    assert torch.equal(found, drawable(logits.float() / 0.7, top_k=5).nonzero())
    tokens, drawn = choose(logits, 0.7, 1.0, [0.5] * 200, 5)
    assert torch.allclose(nucleus_log_probs(logits, head, tokens, found), drawn, atol=1e-5)


def test_the_ends_of_the_unit_interval_give_tokens_that_can_be() -> None:
    logits = torch.full((4, 3 * BLOCK), -torch.inf)
    logits[:, 300], logits[:, 400] = 0.0, 1.0
    tokens, _ = choose(logits, 1.0, 1.0, [0.0, 0.2, 0.3, 1.0])
    assert tokens.tolist() == [300, 300, 400, 400]


def test_greedy_takes_the_largest_logit_and_gives_its_log_prob() -> None:
    logits = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0))
    tokens, log_probs = choose(logits, 0.0, 1.0, [])
    assert torch.equal(tokens, logits.argmax(-1))
    assert torch.allclose(log_probs, logits.log_softmax(-1).max(-1).values, atol=1e-6)


@pytest.mark.parametrize("temperature", [9e-6, 1e-20, 1e-40, 5e-324])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    """Numbers divided by so little overflow, and logits of bf16 are often equal: the first of them is greedy's."""
    logits = torch.randn(200, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    greedy = choose(logits, 0.0, 1.0, [])
    assert (logits == logits.max(-1, keepdim=True).values).sum() > 200, "some rows must have two largest logits"
    for options in ((1.0, 0), (0.9, 0), (0.9, 5)):
        found = choose(logits, temperature, options[0], draws(3)[:200], options[1])
        assert torch.equal(found[0], greedy[0]) and torch.equal(found[1], greedy[1])


def test_a_token_without_probability_is_never_drawn() -> None:
    """The first of each block here, where a number falls just behind the block before."""
    logits = 2 * torch.randn(1, 40 * BLOCK, generator=torch.Generator().manual_seed(0))
    logits[:, ::BLOCK] = -torch.inf
    ends = logits.softmax(-1).unflatten(-1, (-1, BLOCK)).sum(-1).cumsum(-1, dtype=torch.float64)[0]
    points = [float(end / ends[-1]) * (1 + shift) for end in ends[:-1] for shift in (-1e-8, 0, 4e-16, 1e-9, 1e-8)]
    tokens, log_probs = choose(logits.expand(len(points), -1), 1.0, 1.0, points)
    assert len({int(token) // BLOCK for token in tokens}) == 40
    assert log_probs.isfinite().all()
