"""The head with its gradients written out: against the formula in float64, against autograd, and by the bytes it takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gym_core import GymError
from gym_plan.trace import Trace
from gym_torch.model.linear_head import linear_statistics, nothing_else

torch.set_num_threads(1)
ROWS, DIM, VOCABULARY = 37, 24, 101


def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(ROWS, DIM, requires_grad=True)
    weight = (torch.randn(VOCABULARY, DIM) / DIM**0.5).requires_grad_()
    return hidden, weight, torch.randint(VOCABULARY, (ROWS,)), torch.randn(ROWS)


def linear_log_probs(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    (found,) = linear_statistics(hidden, weight, targets, chunk)
    return found


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return (hidden @ weight.T).log_softmax(1).gather(1, targets[:, None]).squeeze(1)


def oracle(hidden: Tensor, weight: Tensor, targets: Tensor, factors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value and gradients of `sum(factors * log p(target))` by autograd in float64."""
    hidden, weight = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    value = plain(hidden, weight, targets)
    return value.detach(), *torch.autograd.grad((value * factors).sum(), (hidden, weight))


@pytest.mark.parametrize("chunk", [1, 5, 36, 37, 1000])
@pytest.mark.parametrize("frozen", ["nothing", "hidden", "weight"])
def test_value_and_gradients_are_the_oracle_s(chunk: int, frozen: str) -> None:
    hidden, weight, targets, factors = problem()
    expected = oracle(hidden, weight, targets, factors)
    for name, tensor in (("hidden", hidden), ("weight", weight)):
        tensor.requires_grad_(name != frozen)
    found = linear_log_probs(hidden, weight, targets, chunk)
    (found * factors).sum().backward()
    assert (found - expected[0]).abs().max() < 1e-6
    for name, tensor, gradient in (("hidden", hidden, expected[1]), ("weight", weight, expected[2])):
        assert (tensor.grad is None) == (name == frozen)
        assert tensor.grad is None or (tensor.grad - gradient).abs().max() < 2e-6


@pytest.mark.parametrize("chunk", [2, 8])
@pytest.mark.parametrize("trained", [True, False])
def test_gradients_are_exact_in_float64(chunk: int, trained: bool) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(5, 4, dtype=torch.double, requires_grad=True)
    weight = torch.randn(7, 4, dtype=torch.double, requires_grad=trained)
    targets = torch.tensor([0, 6, 3, 3, 1])
    assert torch.autograd.gradcheck(lambda *tensors: linear_log_probs(*tensors, targets, chunk), (hidden, weight))


@pytest.mark.parametrize("chunk", [5, 1000])
@pytest.mark.parametrize("frozen", ["nothing", "weight", "both"])
def test_what_else_is_said_of_logits_changes_neither_scores_nor_gradients(chunk: int, frozen: str) -> None:
    def also(logits: Tensor, labels: Tensor) -> Tensor:
        return torch.stack([logits.sum(1), labels + logits.new_zeros(len(labels))])

    found = []
    for said in (also, nothing_else):
        hidden, weight, targets, factors = problem()
        weight.requires_grad_(frozen == "nothing")
        hidden.requires_grad_(frozen != "both")
        scores = linear_statistics(hidden, weight, targets, chunk, said)
        if frozen != "both":
            (scores[0] * factors + scores[1:].sum()).sum().backward()
        found.append((scores.detach(), hidden.grad, weight.grad))
    (scores, *gradients), (alone, *others) = found
    assert torch.equal(scores[:1], alone)
    torch.testing.assert_close(scores[1:], also(hidden @ weight.T, targets).detach())
    for ours, theirs in zip(gradients, others, strict=True):
        assert ours is theirs is None or torch.equal(ours, theirs)


@pytest.mark.parametrize("trained", [True, False])
def test_a_second_derivative_is_refused_and_not_wrong(trained: bool) -> None:
    hidden, weight, targets, _ = problem()
    weight.requires_grad_(trained)
    score = linear_log_probs(hidden, weight, targets, 8).sum()
    with pytest.raises(GymError, match="no second derivative"):
        torch.autograd.grad(score, hidden, create_graph=True)


@pytest.mark.parametrize("chunk", [8, 100])
@pytest.mark.parametrize("trained", [True, False])
def test_a_second_backward_pass_gives_the_same_again(chunk: int, trained: bool) -> None:
    hidden, weight, targets, factors = problem()
    wanted = (hidden, weight) if trained else (hidden,)
    weight.requires_grad_(trained)
    loss = (linear_log_probs(hidden, weight, targets, chunk) * factors).sum()
    for once, again in zip(
        torch.autograd.grad(loss, wanted, retain_graph=True), torch.autograd.grad(loss, wanted), strict=True
    ):
        assert torch.equal(once, again)


def test_scores_are_the_same_bits_with_and_without_a_graph_and_with_a_frozen_weight() -> None:
    hidden, weight, targets, _ = problem()
    found = linear_log_probs(hidden, weight, targets, 8)
    with torch.no_grad():
        assert torch.equal(linear_log_probs(hidden, weight, targets, 8), found)
    assert torch.equal(linear_log_probs(hidden, weight.detach(), targets, 8), found)


@pytest.mark.parametrize("trained", [True, False])
def test_no_rows_give_a_gradient_of_zeros(trained: bool) -> None:
    hidden, weight, targets, _ = problem()
    weight.requires_grad_(trained)
    found = linear_log_probs(hidden[:0], weight, targets[:0], 8)
    found.sum().backward()
    assert found.shape == (0,) and hidden.grad is not None and not hidden.grad.any()
    assert not trained or (weight.grad is not None and not weight.grad.any())


@pytest.mark.parametrize("chunk", [8, 100])
def test_bf16_is_as_close_to_the_truth_as_autograd_is(chunk: int) -> None:
    hidden, weight, targets, factors = problem()
    expected = oracle(hidden, weight, targets, factors)

    def errors(score: Tensor) -> list[float]:
        loss = (score * factors).sum()
        by_hidden, by_weight = torch.autograd.grad(loss, (hidden, weight))
        pairs = zip((score, by_hidden, by_weight), expected, strict=True)
        return [float((found.detach() - wanted).norm() / wanted.norm()) for found, wanted in pairs]

    with torch.autocast("cpu", torch.bfloat16):
        found = linear_log_probs(hidden, weight, targets, chunk)
        usual = (hidden @ weight.T).float().log_softmax(1).gather(1, targets[:, None]).squeeze(1)
    assert found.dtype == torch.float32 and torch.allclose(found, usual, atol=1e-6)
    assert all(own < 1.1 * other + 1e-4 for own, other in zip(errors(found), errors(usual), strict=True))


def test_a_tied_weight_gathers_what_embedding_and_head_add_over_several_passes() -> None:
    hidden, weight, targets, factors = problem()
    del hidden
    embedding = nn.Embedding(VOCABULARY, DIM, _weight=weight.detach().clone())
    other = nn.Embedding(VOCABULARY, DIM, _weight=weight.detach().clone())
    for tokens, labels, shares in zip(targets.split(19), targets.flip(0).split(19), factors.split(19), strict=True):
        (linear_log_probs(embedding(tokens).tanh(), embedding.weight, labels, 4) * shares).sum().backward()
        (plain(other(tokens).tanh(), other.weight, labels) * shares).sum().backward()
    assert (embedding.weight.grad - other.weight.grad).abs().max() < 1e-5


def taken(chunk: int, trained: bool, autocast: bool = False) -> int:
    """Return the bytes that forward and backward need at most, beside what goes in."""
    hidden, weight = torch.randn(64, 16, requires_grad=True), torch.randn(4096, 16, requires_grad=trained)
    targets, trace = torch.randint(4096, (64,)), Trace()
    trace.ignore([hidden, weight, targets])
    with trace:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = linear_log_probs(hidden, weight, targets, chunk)
        found.sum().backward()
    return trace.timeline().peak


def test_beside_the_gradient_of_the_weight_there_is_one_chunk_of_logits() -> None:
    chunk, weight = 16 * 4096 * 4, 4096 * 16 * 4
    small = 16 * 2**10  # rows of `dim` numbers and the like
    assert taken(16, trained=True) <= weight + chunk * 9 / 8 + small
    assert taken(64, trained=True) <= weight + 4 * chunk * 9 / 8 + small
    assert taken(16, trained=False) <= chunk * 9 / 8 + small
    # In bf16: a copy of the weight, a chunk in both precisions, and an eighth of the weight's gradient.
    assert taken(16, trained=True, autocast=True) <= weight * 13 / 8 + chunk * 3 / 2 + small
