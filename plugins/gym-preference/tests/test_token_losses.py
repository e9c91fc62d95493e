"""TDPO against formulas in NumPy, over whole vocabularies, in value and gradient; and where it is DPO."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numeric import Array, gradient
from torch import Tensor
from torch.nn.functional import logsigmoid

from gym_preference.tdpo import losses as token_losses

LENGTHS, VOCABULARY, BETA = ((3, 2), (1, 4)), 7, 0.4  #: tokens of the chosen and of the rejected answer of each pair
ROWS = sum(map(sum, LENGTHS))


def drawn(seed: int) -> tuple[Array, Array, np.ndarray]:
    """Return logits of a policy and of a reference `[rows, vocabulary]`, and the tokens of all answers `[rows]`."""
    random = np.random.default_rng(seed)
    own, other = 2 * random.normal(size=(2, ROWS, VOCABULARY))
    return own, other, random.integers(0, VOCABULARY, ROWS)


def probabilities(logits: Array) -> Array:
    weights = [[math.exp(logit) for logit in row] for row in logits]
    return np.array([[weight / sum(row) for weight in row] for row in weights])


def loss(own: Array, other: Array, tokens: np.ndarray, alpha: float | None, held: Array) -> float:
    """Return the sum over pairs, token by token; `alpha` is None for TDPO1, and `held` are logits that do not learn."""
    policy, reference, constant = probabilities(own), probabilities(other), probabilities(held)
    total, row = 0.0, 0
    for lengths in LENGTHS:
        ratio, kl = [0.0, 0.0], [0.0, 0.0]
        for side, length in enumerate(lengths):
            for _ in range(length):
                ratio[side] += math.log(policy[row, tokens[row]]) - math.log(reference[row, tokens[row]])
                of = constant if side == 0 and alpha is not None else policy
                kl[side] += sum(q * math.log(q / p) for q, p in zip(reference[row], of[row], strict=True))
                row += 1
        margin = ratio[0] - ratio[1] - (1.0 if alpha is None else alpha) * (kl[1] - kl[0])
        total += math.log1p(math.exp(-BETA * margin))
    return total


def sides(own: Tensor, other: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log-ratios and KL of the chosen and of the rejected answers, `[pairs]` each."""
    log_probs, reference, kl = token_losses.compared(own, other, tokens).unbind(1)
    flat = [length for pair in LENGTHS for length in pair]
    ratios, kls = (torch.stack([part.sum() for part in each.split(flat)]) for each in (log_probs - reference, kl))
    return ratios[0::2], ratios[1::2], kls[0::2], kls[1::2]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("alpha", [None, 0.0, 0.5, 2.0])
def test_value_and_gradient_are_those_of_the_formula(seed: int, alpha: float | None) -> None:
    own, other, tokens = drawn(seed)
    logits = torch.tensor(own, requires_grad=True)
    found = sides(logits, torch.tensor(other), torch.tensor(tokens))
    losses = token_losses.tdpo1(*found, BETA) if alpha is None else token_losses.tdpo2(*found, BETA, alpha)
    losses.sum().backward()
    assert losses.sum().item() == pytest.approx(loss(own, other, tokens, alpha, own), rel=1e-6)
    wanted = gradient(lambda at: loss(at, other, tokens, alpha, own), own)
    np.testing.assert_allclose(logits.grad.numpy(), wanted, rtol=1e-6, atol=1e-9)


def test_tdpo2_without_alpha_is_dpo() -> None:
    own, other, tokens = map(torch.tensor, drawn(0))
    chosen, rejected, *kl = sides(own, other, tokens)
    torch.testing.assert_close(
        token_losses.tdpo2(chosen, rejected, *kl, BETA, 0.0), -logsigmoid(BETA * (chosen - rejected)), rtol=0, atol=0
    )


def test_a_policy_that_is_its_reference_has_no_kl() -> None:
    own, _, tokens = map(torch.tensor, drawn(1))
    log_probs, reference, kl = token_losses.compared(own, own, tokens).unbind(1)
    assert torch.equal(log_probs, reference)
    assert not kl.any()


@pytest.mark.parametrize("far", [-1e4, -math.inf])
def test_tokens_that_the_reference_rules_out_add_nothing_and_no_nan(far: float) -> None:
    """Where the softmax is 0, its logarithm is -inf, and 0 times that must not come out."""
    own, other, tokens = drawn(2)
    other[:, 0] = far
    logits = torch.tensor(own, dtype=torch.float32, requires_grad=True)
    found = token_losses.compared(logits, torch.tensor(other, dtype=torch.float32), torch.tensor(np.ones_like(tokens)))
    found.sum().backward()
    assert found.isfinite().all() and logits.grad.isfinite().all()
    left = token_losses.compared(torch.tensor(own), torch.tensor(other), torch.ones(ROWS, dtype=torch.int64))
    masked = probabilities(other[:, 1:]) * np.log(probabilities(other[:, 1:]) / probabilities(own)[:, 1:])
    np.testing.assert_allclose(left[:, 2].numpy(), masked.sum(1), rtol=1e-9)


@pytest.mark.parametrize("rows", [-2, 3])
def test_a_vocabulary_with_more_or_fewer_unused_rows_is_compared_over_what_both_have(rows: int) -> None:
    """Models of one tokenizer are padded to different sizes: Qwen2.5 has 151,936 rows up to 3B, and 152,064 from 7B on."""
    own, other, tokens = drawn(3)
    known = other[:, :rows] if rows < 0 else np.concatenate([other, np.ones((ROWS, rows))], 1)
    targets = torch.tensor(tokens.clip(max=VOCABULARY - 3))
    found = token_losses.compared(torch.tensor(own), torch.tensor(known), targets)
    p, q = probabilities(own), probabilities(known[:, :VOCABULARY])
    p = p[:, : q.shape[1]]
    np.testing.assert_allclose(found[:, 2].numpy(), (q * np.log(q / p)).sum(1), rtol=1e-9)
    np.testing.assert_allclose(found[:, 1].numpy(), np.log(q[range(ROWS), targets]), rtol=1e-9)
