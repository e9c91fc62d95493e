"""Losses of pairs against their papers' formulas in NumPy, in value and gradient, and where they must be what."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numeric import Array, gradient

from gym_core.component import load_object
from gym_core.discovery import entries
from gym_core.loading import load
from gym_preference import PairwisePreference
from gym_preference.pairwise import losses
from gym_preference.pairwise.config.mpo import Summed
from gym_preference.pairwise.objective import PairObjective

PAIRS = 12


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def discopop(w: float, r: float, beta: float, discopop_tau: float) -> float:
    margin = beta * (w - r)
    share = sigmoid(margin / discopop_tau)
    return (1 - share) * softplus(-margin) + share * math.exp(-margin)


def exo(w: float, r: float, beta: float, label_smoothing: float) -> float:
    p = [sigmoid(beta * (w - r)), sigmoid(beta * (r - w))]
    labels = [1 - label_smoothing, label_smoothing]
    return sum(mine * math.log(mine / label) for mine, label in zip(p, labels, strict=True))


def mixed(w: float, r: float, beta: float, label_smoothing: float) -> float:
    return (1 - label_smoothing) * softplus(-beta * (w - r)) + label_smoothing * softplus(beta * (w - r))


def robust(w: float, r: float, beta: float, label_smoothing: float) -> float:
    right, wrong = softplus(-beta * (w - r)), softplus(beta * (w - r))
    return ((1 - label_smoothing) * right - label_smoothing * wrong) / (1 - 2 * label_smoothing)


def odds(log_probability: float) -> float:
    return log_probability - math.log(-math.expm1(log_probability))


SAME = {"nca": "nca_pair"}
#: the formula of a pair, the arguments that are tried
FORMULAS: dict[str, tuple[Callable[..., float], list[dict[str, Any]]]] = {
    "dpo": (lambda w, r, beta: -math.log(sigmoid(beta * (w - r))), [{"beta": 0.1}, {"beta": 1.5}]),
    "cdpo": (mixed, [{"beta": 0.1, "label_smoothing": 0.1}, {"beta": 0.5, "label_smoothing": 0.0}]),
    "robust_dpo": (robust, [{"beta": 0.1, "label_smoothing": 0.1}, {"beta": 0.5, "label_smoothing": 0.4}]),
    "ipo": (lambda w, r, beta: (w - r - 1 / (2 * beta)) ** 2, [{"beta": 0.1}, {"beta": 2.0}]),
    "hinge": (lambda w, r, beta: max(0.0, 1 - beta * (w - r)), [{"beta": 0.1}, {"beta": 1.0}]),
    "bco_pair": (lambda w, r, beta: softplus(-beta * w) + softplus(beta * r), [{"beta": 0.1}, {"beta": 1.0}]),
    "exo_pair": (exo, [{"beta": 0.1, "label_smoothing": 1e-3}, {"beta": 0.5, "label_smoothing": 0.2}]),
    "nca_pair": (
        lambda w, r, beta: softplus(-beta * w) + 0.5 * softplus(beta * w) + 0.5 * softplus(beta * r),
        [{"beta": 0.1}, {"beta": 1.0}],
    ),
    "sppo": (lambda w, r, beta: (w - 0.5 / beta) ** 2 + (r + 0.5 / beta) ** 2, [{"beta": 0.1}, {"beta": 2.0}]),
    "apo_zero": (lambda w, r, beta: 1 - sigmoid(beta * w) + sigmoid(beta * r), [{"beta": 0.1}, {"beta": 1.0}]),
    "apo_down": (
        lambda w, r, beta: sigmoid(beta * w) + 1 - sigmoid(beta * (w - r)),
        [{"beta": 0.1}, {"beta": 1.0}],
    ),
    "discopop": (discopop, [{"beta": 0.1, "discopop_tau": 0.05}, {"beta": 0.05, "discopop_tau": 1.0}]),
    "simpo": (
        lambda w, r, beta, simpo_gamma: softplus(simpo_gamma - beta * (w - r)),
        [{"beta": 2.0, "simpo_gamma": 1.0}, {"beta": 0.1, "simpo_gamma": 0.0}],
    ),
    "orpo": (
        lambda w, r, beta: -w + beta * softplus(odds(r) - odds(w)),
        [{"beta": 0.1}, {"beta": 1.0}],
    ),
}
FORMULAS["mpo"] = (
    lambda w, r, beta, loss_weights: sum(
        v * FORMULAS[SAME.get(name, name)][0](w, r, beta) for name, v in loss_weights.items()
    ),
    [{"beta": 0.3, "loss_weights": {name: 0.2 + place for place, name in enumerate(losses.SUMMED)}}],
)
CASES = [(name, seed, options) for name, (_, tried) in FORMULAS.items() for seed in range(3) for options in tried]


def drawn(name: str, seed: int) -> Array:
    """Return what two answers of each pair score: log-ratios, or log-probabilities for a loss of odds. `[2, pairs]`."""
    found = 8 * np.random.default_rng(seed).normal(size=(2, PAIRS))
    return -np.abs(found) - 1e-3 if name == "orpo" else found


def loss(name: str) -> Callable[..., torch.Tensor]:
    found: Callable[..., torch.Tensor] = load_object(f"gym_preference.pairwise.losses:{name}")
    return found


@pytest.mark.parametrize(("name", "seed", "options"), CASES)
def test_value_and_gradient_are_those_of_the_formula(name: str, seed: int, options: dict[str, Any]) -> None:
    at = drawn(name, seed)
    formula = FORMULAS[name][0]

    def total(sides: Array) -> float:
        return sum(formula(w, r, **options) for w, r in sides.T)

    own = torch.tensor(at, requires_grad=True)
    found = loss(name)(own[0], own[1], **options)
    each = [formula(w, r, **options) for w, r in at.T]
    np.testing.assert_allclose(found.detach().numpy(), each, rtol=1e-9, atol=1e-12)
    found.sum().backward()
    scale = np.abs(own.grad.numpy()).max()
    np.testing.assert_allclose(own.grad.numpy(), gradient(total, at), rtol=1e-6, atol=1e-6 * max(scale, 1.0))


@pytest.mark.parametrize("name", [name for name in FORMULAS if name != "orpo"])
@pytest.mark.parametrize("far", [-1e4, 1e4])
def test_far_away_losses_and_gradients_are_finite(name: str, far: float) -> None:
    for options in FORMULAS[name][1]:
        own = torch.tensor([[far, far, 0.0], [0.0, -far, far]], requires_grad=True)
        found = loss(name)(own[0], own[1], **options)
        found.sum().backward()
        assert found.isfinite().all() and own.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("chosen", "rejected"), [(-1e-9, -1e4), (-1e4, -1e-9), (-1e-9, -1e-9), (-1e4, -1e4), (0.0, 0.0), (-1.0, 0.0)]
)
def test_odds_are_finite_for_sure_and_for_hopeless_answers(chosen: float, rejected: float, dtype: torch.dtype) -> None:
    own = torch.tensor([[chosen], [rejected]], dtype=dtype, requires_grad=True)
    found = losses.orpo(own[0], own[1], 0.1)
    found.sum().backward()
    assert found.isfinite().all() and own.grad.isfinite().all()
    if min(chosen, rejected) < 0 and max(chosen, rejected) < 0:
        wanted = -chosen + 0.1 * softplus(odds(rejected) - odds(chosen))
        assert float(found.detach()) == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_odds_of_an_even_chance_are_one() -> None:
    assert float(losses.log_odds(torch.tensor(math.log(0.5)))) == pytest.approx(0, abs=1e-6)


def test_wrong_labels_cost_nothing_in_the_mean_where_a_loss_is_robust() -> None:
    w, r = torch.tensor(drawn("dpo", 0))
    mean = 0.8 * losses.robust_dpo(w, r, 0.3, 0.2) + 0.2 * losses.robust_dpo(r, w, 0.3, 0.2)
    torch.testing.assert_close(mean, losses.dpo(w, r, 0.3))


def test_relatives_become_dpo() -> None:
    w, r = torch.tensor(drawn("dpo", 0))
    for relative in (losses.cdpo(w, r, 0.3, 0.0), losses.robust_dpo(w, r, 0.3, 0.0), losses.simpo(w, r, 0.3, 0.0)):
        torch.testing.assert_close(relative, losses.dpo(w, r, 0.3))


def test_what_a_sum_may_have_are_algorithms_with_that_loss_and_no_other_option() -> None:
    assert set(get_args(Summed)) == losses.SUMMED.keys()
    for name, function in losses.SUMMED.items():
        (entry,) = (each for each in entries("algorithms") if each.name == name)
        cls = load(entry)
        objective: Any = load_object(cls.objective)(cls())
        assert objective.losses is function and objective.arguments.keys() == {"beta"} and not cls.per_token


def test_the_options_of_every_component_are_the_arguments_of_its_loss() -> None:
    checked = 0
    for cls in map(load, entries("algorithms")):
        if not (isinstance(cls, type) and issubclass(cls, PairwisePreference) and cls.loss):
            continue
        objective: Any = load_object(cls.objective)(cls())
        assert isinstance(objective, PairObjective)
        taken = list(inspect.signature(objective.losses).parameters)
        assert taken[:2] == ["chosen", "rejected"]
        assert set(taken[-len(objective.arguments) :]) == objective.arguments.keys()
        checked += 1
    assert checked >= 18


@pytest.mark.parametrize("name", [entry.name for entry in entries("algorithms") if entry.dist == "gym-preference"])
def test_the_page_of_an_algorithm_says_its_formula_and_when_to_use_it(name: str) -> None:
    (entry,) = (each for each in entries("algorithms") if each.name == name)
    doc = load(entry).__doc__ or ""
    assert "    loss = " in doc and "Use it for: " in doc
