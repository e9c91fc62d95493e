"""Two sides of a comparison are one function of the same options: sampler, old policy, policy and reference agree at first.

Over all combinations that a recipe can have, before anything is learnt every ratio is 1 and every divergence 0.
"""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gym_rl_bench import algorithm, rounds
from transformers import AutoModelForCausalLM

from gym_core import GymError, execute, load_recipe
from gym_rl import LocalEngineConfig
from gym_rl.local_engine import LocalEngine
from gym_rl.rollouts.batch import RolloutBatch
from gym_rl.rollouts.dynamic_sampling import concatenate, select_groups
from gym_rl.rollouts.experience import Experience
from gym_rl.rollouts.top_p_mask import with_top_p_sets
from gym_rl.unclipped_objective import Reinforce
from gym_testkit.bench import Bench
from gym_torch.packing import PACKED, PADDED
from gym_torch.policy import Policy

torch.set_num_threads(1)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def recipe(bench: Bench, name: str = "reinforce_pp", **options: Any) -> dict[str, Any]:
    rewards = [{"name": "regex", "pattern": "[a-z]"}]
    made = {"name": name, "rewards": rewards, "max_new_tokens": 6, **options}
    return bench.recipe(made, "prompt", batch_size=4, accumulate=2)


#: Half of all combinations, in which any three of the four are combined in every way.
COMBINATIONS = [
    (
        (1.0, 0.7)[heat],
        (1.0, 0.8)[cut],
        ("fp32", "bf16")[half],
        (None, {"name": "lora", "rank": 4, "dropout": 0.4})[lora],
    )
    for heat, cut, half, lora in product((0, 1), repeat=4)
    if (heat + cut + half + lora) % 2 == 0
]


@pytest.mark.parametrize(("temperature", "top_p", "precision", "adapter"), COMBINATIONS)
def test_before_anything_is_learnt_all_sides_agree(
    bench: Bench, temperature: float, top_p: float, precision: str, adapter: dict[str, Any] | None
) -> None:
    made = recipe(bench, temperature=temperature, top_p=top_p, beta=0.1, kl_estimator="k3_is", num_mini_batches=2)
    first, second = bench.run(made | {"adapter": adapter}, precision=precision, learning_rate=1e-9).metrics
    rounding = 1e-5 if precision == "fp32" else 0.05
    for line in (first, second):
        assert line["ratio/abs_dev"] <= rounding and abs(line["ratio/max"] - 1) <= 4 * rounding
        assert abs(line["kl"]) <= rounding and line["approx_kl"] <= rounding
    assert first["sampling/sampling_logp_difference/mean"] <= rounding


@pytest.mark.parametrize("cut", [{"top_k": 5}, {"min_p": 0.3}, {"top_k": 9, "min_p": 0.2, "top_p": 0.8}], ids=str)
def test_a_cut_of_any_kind_is_on_all_sides(bench: Bench, cut: dict[str, Any]) -> None:
    made = recipe(bench, temperature=0.7, beta=0.1, kl_estimator="k3_is", num_mini_batches=2, **cut)
    for line in bench.run(made, precision="fp32", learning_rate=1e-9).metrics:
        assert line["ratio/abs_dev"] <= 1e-5 and abs(line["kl"]) <= 1e-5 and line["approx_kl"] <= 1e-5


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"min_p": 1.0}], ids=str)
def test_a_cut_that_leaves_nothing_to_draw_is_refused(cut: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(cut))):
        algorithm(**cut)


def test_an_entropy_bonus_rounds_as_what_it_is_compared_with(bench: Bench) -> None:
    made = recipe(bench, temperature=0.7, entropy_coef=1e-6, num_mini_batches=2)
    for line in bench.run(made, precision="bf16", learning_rate=1e-9).metrics:
        assert line["ratio/abs_dev"] <= 1e-6


@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=["packed", "padded"])
def test_the_distribution_that_is_drawn_from_is_the_one_that_is_trained(model_path: Path, layout: Any) -> None:
    """Loss and gradient with `top_p`, against the formula in float64 over the set that the sampler kept."""
    rollouts = rounds(model_path, top_p=0.7, temperature=0.8)
    model = rollouts.generator.engine.generator.model
    if layout is PADDED:
        model.set_attn_implementation("eager")
    objective = Reinforce(algorithm(top_p=0.7, temperature=0.8), layout)
    policy = Policy(model, temperature=objective.temperature)
    rollouts.sampled = lambda found, shares: with_top_p_sets(
        found, shares(found), objective.collate, lambda batch: policy.nucleus(batch, 0.7), torch.device("cpu")
    )
    step = next(rollouts.steps(0))
    exact = AutoModelForCausalLM.from_pretrained(model_path).double()
    wanted, total = torch.zeros((), dtype=torch.float64), torch.zeros(())
    for examples in step.batches:
        batch = objective.collate(examples)
        assert isinstance(batch, RolloutBatch)
        torch.testing.assert_close(policy(batch).detach(), batch.sampling_log_probs, rtol=0, atol=2e-5)
        total = total + objective.loss(policy, batch)[0]
        for answer in examples:
            prompt = answer.prompt.tokens.tolist()
            logits = (
                exact(input_ids=torch.tensor([prompt + answer.tokens.tolist()])).logits[0, len(prompt) - 1 : -1] / 0.8
            )
            for row, token in zip(logits, answer.tokens.tolist(), strict=True):
                order = row.detach().softmax(0).argsort(descending=True)
                before = row.detach().softmax(0)[order].cumsum(0) - row.detach().softmax(0)[order]
                kept = order[before < 0.7]
                assert token in kept.tolist()
                wanted = wanted - float(answer.columns["advantages"][0]) * (row[token] - row[kept].logsumexp(0))
    assert total.item() == pytest.approx(wanted.item(), rel=1e-4)
    total.backward()
    wanted.backward()
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        assert (ours.grad.double() - theirs.grad).norm() <= 1e-4 * theirs.grad.norm() + 1e-9


def test_the_sets_stay_with_the_round(model_path: Path) -> None:
    """What was carried over or read from a checkpoint has the sets of the policy that answered."""
    rollouts = rounds(model_path, top_p=0.7)
    objective, policy = Reinforce(algorithm(), PACKED), Policy(rollouts.generator.engine.generator.model)
    rollouts.sampled = lambda found, shares: with_top_p_sets(
        found, shares(found), objective.collate, lambda batch: policy.nucleus(batch, 0.7), torch.device("cpu")
    )
    next(rollouts.steps(0))
    whole = rollouts.experience
    parts = [select_groups(whole, torch.tensor(chosen)) for chosen in ([True, False], [False, True])]
    for again in (concatenate(parts), Experience.from_tensors(whole.tensors())):
        pairs = zip(again.rollouts(rollouts.prompts), whole.rollouts(rollouts.prompts), strict=True)
        assert all(np.array_equal(one.nucleus, other.nucleus) for one, other in pairs)


class Frozen(LocalEngineConfig):
    """Answers with a copy of the weights as they were at first, and says that it is exact."""

    target: ClassVar[str] = "test_both_sides:FrozenEngine"


class FrozenEngine(LocalEngine):
    def __init__(self, config: LocalEngineConfig, **context: Any) -> None:
        adapted = copy.copy(context.pop("adapted"))
        adapted.model = copy.deepcopy(adapted.model)
        super().__init__(config, adapted=adapted, **context)


def test_a_sampler_that_gets_no_new_weights_is_found_in_any_round(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It agrees at first; after a few steps it does not, also where the run went on in between."""
    made = recipe(bench, max_mismatch=0.01)
    made["train"] |= {"learning_rate": 0.02, "max_steps": 40, "save_every": 1}
    loaded = load_recipe(made | {"output": str(bench.root / "run")})
    monkeypatch.setitem(vars(loaded.algorithm), "rollouts", Frozen())
    with pytest.raises(GymError, match="differ from the trainer") as raised:
        execute(loaded)
    assert "rollouts `" in str(raised.value) and "max_mismatch" in str(raised.value)
    steps = len((bench.root / "run" / "metrics.jsonl").read_text().splitlines())
    assert 0 < steps < 40, "it was found at once, or never"
