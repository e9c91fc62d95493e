"""Log-probabilities of labels: against an independent oracle, and the same for every chunk size."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_core import GymError
from gym_torch.model.hidden_states import backbone_states, take_whole
from gym_torch.model.log_probs import head_of, label_log_probs, log_probs_and_entropies, map_logits

torch.set_num_threads(1)
ROWS, DIM, VOCABULARY = 37, 24, 101


def oracle(hidden: Tensor, weight: Tensor, targets: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value and gradients of `sum(coefficients * log p(target))` by the formula, in float64."""
    hidden, weight, coefficients = hidden.detach().double(), weight.detach().double(), coefficients.double()
    logits = hidden @ weight.T
    exponents = (logits - logits.amax(1, keepdim=True)).exp()
    p = exponents / exponents.sum(1, keepdim=True)
    by_logit = coefficients[:, None] * (nn.functional.one_hot(targets, len(weight)) - p)
    return p[torch.arange(len(p)), targets].log(), by_logit @ weight, by_logit.T @ hidden


@pytest.fixture
def problem() -> tuple[Tensor, nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(ROWS, DIM, requires_grad=True)
    return (
        hidden,
        nn.Linear(DIM, VOCABULARY, bias=False),
        torch.randint(VOCABULARY, (ROWS,)),
        torch.randn(ROWS),
    )


@pytest.mark.parametrize("chunk", [1, 5, 37, 1000])
def test_value_and_gradient_are_the_oracle_s(problem: tuple[Tensor, nn.Linear, Tensor, Tensor], chunk: int) -> None:
    hidden, head, targets, coefficients = problem
    found = label_log_probs(hidden, head, targets, chunk)
    (found * coefficients).sum().backward()
    value, by_hidden, by_weight = oracle(hidden, head.weight, targets, coefficients)
    assert found.dtype == torch.float32
    assert (found - value).abs().max() < 1e-6
    assert (hidden.grad - by_hidden).abs().max() < 1e-6
    assert (head.weight.grad - by_weight).abs().max() < 2e-6


def test_gradients_are_exact_in_float64() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(5, 4, dtype=torch.double, requires_grad=True)
    weight = torch.randn(7, 4, dtype=torch.double, requires_grad=True)
    targets = torch.tensor([0, 6, 3, 3, 1])
    assert torch.autograd.gradcheck(
        lambda hidden, weight: label_log_probs(hidden, lambda rows: rows @ weight.T, targets, 2),
        (hidden, weight),
    )


def test_no_rows(problem: tuple[Tensor, nn.Linear, Tensor, Tensor]) -> None:
    hidden, head, targets, _ = problem
    found = label_log_probs(hidden[:0], head, targets[:0])
    found.sum().backward()
    assert found.shape == (0,)


def test_frozen_head_and_frozen_input(problem: tuple[Tensor, nn.Linear, Tensor, Tensor]) -> None:
    hidden, head, targets, coefficients = problem
    _, by_hidden, by_weight = oracle(hidden, head.weight, targets, coefficients)
    (label_log_probs(hidden.detach(), head, targets, 8) * coefficients).sum().backward()
    assert hidden.grad is None and (head.weight.grad - by_weight).abs().max() < 2e-6
    head.requires_grad_(False)
    (label_log_probs(hidden, head, targets, 8) * coefficients).sum().backward()
    assert (hidden.grad - by_hidden).abs().max() < 1e-6


def test_dropout_in_the_head_is_the_same_when_recomputed() -> None:
    torch.manual_seed(0)
    hidden, head = (
        torch.ones(6, 8, requires_grad=True),
        nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 9, bias=False)),
    )
    seen: list[Tensor] = []
    head[0].register_forward_hook(lambda module, args, output: seen.append(output.detach()))
    label_log_probs(hidden, head, torch.arange(6), 3).sum().backward()
    assert len(seen) == 4
    assert {tuple(map(tuple, kept.tolist())) for kept in seen[:2]} == {
        tuple(map(tuple, kept.tolist())) for kept in seen[2:]
    }


def test_a_single_chunk_is_not_computed_twice() -> None:
    head, calls = nn.Linear(8, 9), []
    head.register_forward_hook(lambda *_: calls.append(1))
    label_log_probs(torch.ones(6, 8, requires_grad=True), head, torch.arange(6), 6).sum().backward()
    assert len(calls) == 1


def test_autocast_computes_the_head_in_bf16_and_the_rest_in_fp32(
    problem: tuple[Tensor, nn.Linear, Tensor, Tensor],
) -> None:
    hidden, head, targets, _ = problem
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = label_log_probs(hidden, head, targets, 8)
        logits = head(hidden)
    found.sum().backward()
    assert logits.dtype == torch.bfloat16 and found.dtype == torch.float32
    expected = logits.float().log_softmax(1).gather(1, targets[:, None]).squeeze(1)
    assert torch.allclose(found, expected, atol=1e-6)
    assert hidden.grad is not None and hidden.grad.dtype == torch.float32


def test_only_one_chunk_of_logits_exists_at_a_time(problem: tuple[Tensor, nn.Linear, Tensor, Tensor]) -> None:
    hidden, head, targets, _ = problem
    saved: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        label_log_probs(hidden, lambda rows: head(rows), targets, 4)
    assert max(saved, default=0) < 4 * VOCABULARY


def test_a_function_of_the_whole_vocabulary(problem: tuple[Tensor, nn.Linear, Tensor, Tensor]) -> None:
    hidden, head, _, coefficients = problem

    def weighted_entropy(logits: Tensor, rows: slice) -> Tensor:
        return coefficients[rows] * torch.special.entr(logits.softmax(1)).sum(1)

    found = map_logits(hidden, head, weighted_entropy, 5)
    assert torch.allclose(found, weighted_entropy(head(hidden), slice(None)), atol=1e-6)


def tiny(model_type: str, **options: object) -> PreTrainedModel:
    shape = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 50, "pad_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **shape, **options)).eval()


def test_tokens_that_another_vocabulary_lacks_have_no_divergence() -> None:
    """Also where nothing else could be drawn: a teacher may have fewer unused rows than its student."""
    torch.manual_seed(0)
    hidden, other = torch.randn(2, 10, requires_grad=True), torch.randn(2, 8)
    kept = torch.tensor([[0, 8], [0, 9], [1, 1], [1, 2], [1, 9]])
    _, _, found = log_probs_and_entropies(
        hidden, lambda rows: rows, torch.tensor([9, 2]), kept, other=lambda logits, rows: other[rows]
    )
    found.sum().backward()
    own, known = (torch.distributions.Categorical(logits=each[1, 1:3].detach()) for each in (hidden, other))
    torch.testing.assert_close(found, torch.stack([torch.zeros(()), torch.distributions.kl_divergence(own, known)]))
    assert not hidden.grad[0].any() and hidden.grad[1, 1:3].all() and not hidden.grad[1, 3:].any()


@pytest.mark.parametrize("cut", [False, True])
def test_the_divergence_of_equals_has_no_gradient_and_that_of_others_the_one_of_float64(cut: bool) -> None:
    """Not that of rounding, of which adamw makes whole steps."""
    torch.manual_seed(0)
    kept = torch.stack([torch.arange(4).repeat_interleave(30), torch.arange(30).repeat(4)], 1) if cut else None
    hidden, apart = torch.randn(4, 50), torch.randn(4, 50)

    def gradient(hidden: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        own, targets = hidden.clone().requires_grad_(), torch.zeros(4, dtype=torch.int64)
        found = log_probs_and_entropies(own, lambda rows: rows, targets, kept, other=lambda logits, rows: other[rows])
        (wanted,) = torch.autograd.grad(found[2].sum(), own)
        return wanted

    assert not gradient(hidden, hidden).any()
    own, count = hidden.double().requires_grad_(), 30 if cut else 50
    said, known = (each[:, :count].log_softmax(1) for each in (own, apart.double()))
    (said.exp() * (said - known)).sum().backward()
    torch.testing.assert_close(gradient(hidden, apart).double(), own.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda: tiny("qwen3", tie_word_embeddings=True),
        lambda: tiny("llama"),
        lambda: tiny("phi"),  # its head has a bias
        lambda: tiny("gemma2", final_logit_softcapping=0.1),
        lambda: tiny("cohere", logit_scale=0.0625),
        lambda: tiny("granite", logits_scaling=8.0),
    ],
)
def test_every_family_s_head(build: Callable[[], PreTrainedModel]) -> None:
    model = build()
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    expected = model(tokens).logits[0, :-1].double().log_softmax(1).gather(1, tokens[0, 1:, None]).squeeze(1)
    found = label_log_probs(model.base_model(tokens).last_hidden_state[0, :-1], head_of(model), tokens[0, 1:], 2)
    assert torch.allclose(found.double(), expected, atol=1e-5)
    found.sum().backward()
    assert model.get_output_embeddings().weight.grad.abs().sum() > 0


def test_a_pass_up_to_the_head_ends_no_pass_of_another_thread() -> None:
    plain, tokens, found = tiny("llama"), torch.tensor([[3, 1, 4]]), []
    whole = type("Whole", (type(plain),), {})(plain.config).eval()
    take_whole(type(whole))

    def meanwhile(*_: object) -> None:
        hook.remove()
        with ThreadPoolExecutor(1) as other:
            found.append(other.submit(lambda: whole(tokens).logits).result())

    hook = whole.model.layers[0].register_forward_pre_hook(meanwhile)
    states = backbone_states(whole, input_ids=tokens)
    assert torch.equal(found[0], whole(tokens).logits) and torch.equal(states, whole.model(tokens).last_hidden_state)


def test_a_head_that_is_not_understood_is_refused() -> None:
    model = tiny("llama")
    model.register_forward_hook(lambda module, args, output: output.__setitem__("logits", output.logits * 2))
    with pytest.raises(GymError, match="in a way that Gym does not know"):
        head_of(model)


@pytest.mark.parametrize("how", ["forward", "hook"])
def test_what_takes_the_place_of_a_head_or_looks_on_at_its_gradient_is_called(
    problem: tuple[Tensor, nn.Linear, Tensor, Tensor], how: str
) -> None:
    hidden, head, targets, _ = problem
    weight, expected = head.weight, label_log_probs(hidden, head, targets)
    if how == "forward":
        head.forward = lambda rows: 2 * (rows @ weight.T)  # type: ignore[method-assign]
        expected = label_log_probs(2 * hidden, nn.Linear.forward.__get__(head), targets)
    else:
        head.register_full_backward_hook(lambda _module, by_input, _by_output: (torch.zeros_like(by_input[0]),))
    found = label_log_probs(hidden, head, targets)
    assert torch.allclose(found, expected, atol=1e-5)
    (by_hidden,) = torch.autograd.grad(found.sum(), hidden)
    assert bool(by_hidden.any()) == (how == "forward")
