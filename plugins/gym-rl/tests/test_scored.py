"""What a round is scored with, and what that does to the loss: a reference, an older policy, a sampler of other arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from gym_core.component import load_object
from gym_rewards import Length
from gym_rl import RLOO, PolicyGradient, ReinforcePP
from gym_rl.clipped_objectives import ClippedTokens
from gym_rl.formulas.kl import ESTIMATORS
from gym_rl.formulas.loss_aggregation import AGGREGATIONS
from gym_rl.formulas.off_policy_correction import CORRECTIONS
from gym_rl.rollouts.experience import Rollout
from gym_torch.batch import Piece
from gym_torch.metrics import Largest

torch.set_num_threads(1)
LENGTHS = (3, 1, 5)
OWNER = [number for number, length in enumerate(LENGTHS) for _ in range(length)]


def rollouts(*names: str) -> list[Rollout]:
    """Return answers with random columns of these names."""
    random = np.random.default_rng(0)
    prompt = Piece("row", np.arange(3, 7, dtype=np.int32), np.zeros(4, bool))
    made = []
    for number, length in enumerate(LENGTHS):
        said = random.integers(3, 60, length).astype(np.int32)
        columns = {name: random.uniform(-2, -1, length).astype(np.float32) for name in names}
        columns["advantages"] = random.normal(size=length).astype(np.float32)
        made.append(Rollout(str(number), 0, prompt, said, np.ones(length, bool), columns, number))
    return made


def drawn() -> Tensor:
    values = torch.rand(len(OWNER), generator=torch.Generator().manual_seed(1))
    return (-2 + values).requires_grad_()


#: the weight of each token by its log-ratio, those of its answer, and whether to look at the token or the answer
WEIGHTS: dict[str, Callable[[float, list[float]], float]] = {
    "none": lambda token, answer: 1.0,
    "tis": lambda token, answer: min(math.exp(token), 2.0),
    "sequence_tis": lambda token, answer: min(math.exp(sum(answer)), 2.0),
    "icepop": lambda token, answer: math.exp(token) if 0.5 <= math.exp(token) <= 5 else 0.0,
    "mis": lambda token, answer: math.exp(sum(answer)) if math.exp(sum(answer)) <= 2.0 else 0.0,
    "geo": lambda token, answer: float(0.99 <= math.exp(sum(answer) / len(answer)) <= 1.01),
}
PENALTIES: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "k2": lambda new, reference, sampled: (new - reference) ** 2 / 2,
    "k3": lambda new, reference, sampled: torch.exp(reference - new) - (reference - new) - 1,
    "k3_is": lambda new, reference, sampled: (
        torch.exp(new - sampled) * (torch.exp(reference - new) - (reference - new) - 1)
    ),
    "k1_in_reward": lambda new, reference, sampled: torch.zeros(()),
}


def clipped(new: Tensor, old: float, advantage: float) -> Tensor:
    ratio = torch.exp(new - old)
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


@pytest.mark.parametrize(("kl", "correction"), [(kl, "tis") for kl in PENALTIES] + [("k3", each) for each in WEIGHTS])
def test_loss_and_gradient_agree_with_the_formula_in_float64(kl: Any, correction: Any) -> None:
    config = ReinforcePP(rewards=[Length()], beta=0.7, kl_estimator=kl, importance_sampling_correction=correction)
    objective, log_probs = ClippedTokens(config), drawn()
    batch = objective.collate(rollouts("sampling_log_probs", "old_log_probs", "ref_log_probs"))
    loss, _ = objective.loss(lambda _: log_probs, batch)
    (found,) = torch.autograd.grad(loss, log_probs)

    exact = log_probs.detach().double().requires_grad_()
    columns = {name: column.double().tolist() for name, column in batch.columns.items()}
    apart = [
        old - sampled for old, sampled in zip(columns["old_log_probs"], columns["sampling_log_probs"], strict=True)
    ]
    wanted = torch.zeros((), dtype=torch.float64)
    for place, owner in enumerate(OWNER):
        old, answer = (
            columns["old_log_probs"][place],
            [value for value, own in zip(apart, OWNER, strict=True) if own == owner],
        )
        weight = WEIGHTS[correction](apart[place], answer)
        wanted = wanted + weight * clipped(exact[place], old, columns["advantages"][place])
        sampled = columns["sampling_log_probs"][place]
        wanted = wanted + 0.7 * PENALTIES[kl](exact[place], columns["ref_log_probs"][place], sampled)
    (right,) = torch.autograd.grad(wanted, exact)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-6)


def test_without_an_older_policy_the_ratio_is_one_and_the_sampler_is_corrected_for() -> None:
    objective, log_probs = ClippedTokens(ReinforcePP(rewards=[Length()])), drawn()
    batch = objective.collate(rollouts("sampling_log_probs"))
    loss, metrics = objective.loss(lambda _: log_probs, batch)
    (found,) = torch.autograd.grad(loss, log_probs)
    weights = (log_probs.detach() - batch.sampling_log_probs).exp().clamp(max=2.0)
    torch.testing.assert_close(found, -weights * batch.advantages)
    apart = (log_probs.detach() - batch.sampling_log_probs).abs()
    difference = metrics["sampling/sampling_logp_difference/mean"].numbers()
    assert list(map(float, difference)) == pytest.approx([float(apart.sum()), len(apart)])
    assert float(metrics["sampling/sampling_logp_difference/max"].among) == pytest.approx(float(apart.max()))
    assert list(map(float, metrics["ratio/abs_dev"].numbers())) == [0, len(apart)]
    weight = metrics["sampling/importance_sampling_ratio/mean"].numbers()
    assert list(map(float, weight)) == pytest.approx([float(weights.sum()), len(weights)])


@pytest.mark.parametrize("cls", [RLOO, ReinforcePP])
def test_what_is_measured_of_tokens_is_a_mean_over_tokens_however_losses_add_up(cls: type[PolicyGradient]) -> None:
    objective, log_probs = load_object(cls.objective)(cls(rewards=[Length()])), drawn()
    batch = objective.collate(rollouts("sampling_log_probs", "old_log_probs"))
    _, metrics = objective.loss(lambda _: log_probs, batch)
    ratio = (log_probs.detach() - batch.old_log_probs).exp()
    wanted = {"ratio/mean": ratio, "ratio/abs_dev": (ratio - 1).abs()}
    for name, each in wanted.items():
        total, count = map(float, metrics[name].numbers())
        assert total / count == pytest.approx(float(each.mean()))
    assert isinstance(metrics["ratio/max"], Largest)
    assert float(metrics["ratio/max"].among) == pytest.approx(float(ratio.max()))


def test_the_keys_name_what_there_is() -> None:
    fields = ReinforcePP.model_fields
    assert set(get_args(fields["loss_agg_mode"].annotation)) == AGGREGATIONS.keys()
    assert set(get_args(fields["importance_sampling_correction"].annotation)) == CORRECTIONS.keys()
    others = {"k1_in_reward", "full"}  # k1 has no gradient
    assert set(get_args(fields["kl_estimator"].annotation)) == (ESTIMATORS.keys() - {"k1"}) | others


def test_a_reference_that_nothing_looks_at_is_refused() -> None:
    with pytest.raises(ValueError, match="`beta` is 0"):
        ReinforcePP(rewards=[Length()], ref_model="tiny")


def test_an_estimator_of_a_divergence_without_weight_is_refused_and_the_usual_one_may_be_said() -> None:
    with pytest.raises(ValueError, match="`kl_estimator` does nothing where `beta` is 0"):
        ReinforcePP(rewards=[Length()], kl_estimator="k3")
    assert ReinforcePP(rewards=[Length()], kl_estimator="k1_in_reward").beta == 0
