"""Plans for answers that nobody has given yet: the bound holds, and `gym plan` and the record of a run say it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from gym_rl_bench import Prompt, Prompts, algorithm, prompts, rounds

from gym_core import RecipeError, Train, load_recipe
from gym_plan.commands import plan
from gym_plan.memory import Memory
from gym_plan.plan import plan as made_plan
from gym_rl.rollouts.largest_rollouts import LargestRollouts
from gym_rl.unclipped_objective import Reinforce
from gym_testkit.bench import Bench
from gym_torch.packing import PACKED
from gym_torch.shared_prefixes import SHARED


def test_no_step_of_a_run_is_larger_than_the_bound(model_path: Path) -> None:
    config, train = algorithm(), Train(batch_size=4, accumulate=2)
    bound, objective = LargestRollouts(config, prompts(6), train, PACKED), Reinforce(config, PACKED)
    real = rounds(model_path)
    assert bound.total == real.total
    most = max(objective.collate(batch).size for batch in next(bound.steps(0)).batches)
    longest = max(len(prompt.tokens) for prompt in prompts(6))
    assert most == longest + 4 * 6
    assert all(objective.collate(batch).size <= most for step in real.steps(0) for batch in step.batches)
    assert len(list(bound.steps(1))) == bound.total - 1


def test_the_bound_does_not_count_on_prompts_that_begin_alike() -> None:
    """The longest may, and stand once where they do; a step of others does not."""
    longest, others = alike(2, 40), unlike(4, 39)
    config, train = algorithm(), Train(batch_size=8, accumulate=1)
    objective = Reinforce(config, SHARED)

    def most(found: Prompts) -> int:
        return max(
            objective.collate(batch).size
            for batch in next(LargestRollouts(config, found, train, SHARED).steps(0)).batches
        )

    assert most(Prompts([*longest, *others])) >= most(others) > 2 * 39


def alike(count: int, length: int) -> Prompts:
    tokens = [np.array([*range(5, length + 4), 50 + number], np.int32) for number in range(count)]
    return Prompts(Prompt(f"alike {number}", each, np.zeros(length, bool)) for number, each in enumerate(tokens))


def unlike(count: int, length: int) -> Prompts:
    tokens = [np.arange(5 + number, 5 + number + length, dtype=np.int32) for number in range(count)]
    return Prompts(Prompt(f"unlike {number}", each, np.zeros(length, bool)) for number, each in enumerate(tokens))


def test_a_step_that_cannot_be_cut_into_groups_is_refused() -> None:
    for train, key in ((Train(batch_size=6), "train.batch_size"), (Train(batch_tokens=64), "train.batch_tokens")):
        with pytest.raises(RecipeError) as caught:
            LargestRollouts(algorithm(), prompts(6), train, PACKED)
        assert caught.value.problems[0].key == key


def test_the_plan_of_a_recipe_is_an_upper_bound(bench: Bench) -> None:
    algorithm = {
        "name": "rloo",
        "rewards": [{"name": "exact"}],
        "group_size": 4,
        "max_new_tokens": 32,
    }
    recipe = bench.recipe(algorithm, "prompt", max_steps=3, accumulate=2)
    file = bench.path("recipe.yaml")
    made = {}
    for name, data in (("known", recipe["data"]), ("unknown", str(bench.root / "nowhere.jsonl"))):
        file.write_text(yaml.safe_dump({**recipe, "data": {"sources": [data], "cutoff": 64}}), encoding="utf-8")
        done = CliRunner().invoke(plan, [str(file), "--json"], catch_exceptions=False)
        made[name] = json.loads(done.output)
    known, unknown = made["known"], made["unknown"]
    assert known["steps"] == 3 and known["based_on"].startswith("at most: answers of 32 tokens")
    assert unknown["batch_tokens"] == 2 * (64 + 4 * 32) > known["batch_tokens"] > 2 * 4 * 32
    assert unknown["tokens"] == 3 * 2 * 8 * 32, "a run counts the tokens of completions"
    auto = {**recipe, "train": {"batch_tokens": "auto", "max_steps": 3, "precision": "fp32"}}
    file.write_text(yaml.safe_dump(auto), encoding="utf-8")
    with pytest.raises(RecipeError, match="counted in completions"):
        CliRunner().invoke(plan, [str(file)], catch_exceptions=False)


@pytest.mark.parametrize("adapter", ["full", {"name": "lora", "rank": 4}])
def test_a_plan_counts_a_critic_of_its_own_and_a_reference(bench: Bench, adapter: Any) -> None:
    """As `benchmarks/rl_memory.py` measures it: GRPO, or a value head, takes at most 0.62 of PPO with a second model."""
    model = str(bench.model())

    def memory(**options: Any) -> Memory:
        algorithm = {"name": "ppo", "rewards": [{"name": "exact"}], "group_size": 4, "max_new_tokens": 16, **options}
        recipe = bench.recipe(algorithm, "prompt", max_steps=1) | {"adapter": adapter}
        return made_plan(load_recipe(recipe | {"output": str(bench.root / "x")})).memory

    head, own, held = memory(), memory(critic=model), memory(beta=0.1)
    assert own.weights == 2 * head.weights and own.optimizer == 2 * head.optimizer
    assert own.gradients == 2 * head.gradients and 1.5 * head.activations < own.activations <= 2 * head.activations
    assert 0.5 < head.peak / own.peak < 0.62
    further = head.weights if adapter == "full" else 0  # an adapter that is left out leaves the reference
    assert (held.weights, held.peak) == (head.weights + further, head.peak + further)
    assert (held.optimizer, held.gradients) == (head.optimizer, head.gradients)
    named = memory(beta=0.1, ref_model=model)
    assert named.peak - head.peak == named.weights - head.weights > 0
    assert named.weights <= 2 * head.weights


def test_a_run_records_what_was_predicted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_torch.planners.BRIEF", 0.0)
    run = bench.run(bench.recipe({"name": "rloo", "rewards": [{"name": "exact"}], "max_new_tokens": 4}, "prompt"))
    assert json.loads((run.outcome.output / "run.json").read_text())["memory"]["predicted_bytes"] > 0
