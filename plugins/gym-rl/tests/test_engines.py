"""Rollout engines: how a recipe names one, what is believed of its answers, and the local one in both precisions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from gym_adapters import LoRA
from gym_core import GymError, PluginError, RecipeError, load_recipe
from gym_data.tokenizer import Tokenizer
from gym_rl import LocalEngineConfig
from gym_rl.local_engine import LocalEngine
from gym_rl.rollout_engine import RolloutRequest
from gym_rl.rollouts.engine_output_check import check
from gym_torch.generation.generator import Generator
from gym_torch.generation.row import Completion
from gym_torch.model.adapted import Full

PROMPTS = [[5, 9, 17], [30], [5, 9, 17]]
REWARDS = [{"name": "length", "maximum": 2, "slack": 14}]


def named(bench: Any, rollouts: Any) -> Any:
    return load_recipe(bench.recipe({"name": "rloo", "rewards": REWARDS, **rollouts}, "prompt")).algorithm.rollouts


@pytest.mark.parametrize(
    ("rollouts", "expected"),
    [
        ({}, LocalEngineConfig()),
        ({"rollouts": "local"}, LocalEngineConfig()),
        ({"rollouts": {"max_batch": 3}}, LocalEngineConfig(max_batch=3)),
        ({"rollouts": {"name": "local", "max_batch": 3}}, LocalEngineConfig(max_batch=3)),
    ],
)
def test_a_recipe_names_an_engine(bench, rollouts, expected) -> None:
    assert named(bench, rollouts) == expected


def test_an_engine_that_is_not_there_or_has_no_such_option(bench) -> None:
    with pytest.raises(PluginError, match="no installed plugin"):
        named(bench, {"rollouts": "telepathy"})
    with pytest.raises(RecipeError, match="unknown key"):
        named(bench, {"rollouts": {"max_bach": 3}})


def test_how_many_are_answered_at_once_changes_nothing(bench) -> None:
    recipes = [
        bench.recipe(
            {"name": "rloo", "rewards": REWARDS, "max_new_tokens": 8, "rollouts": {"max_batch": most}}, "prompt"
        )
        for most in (64, 3)
    ]
    first, second = (bench.run(recipe, name=f"run-{n}") for n, recipe in enumerate(recipes))
    assert first.series("reward") == second.series("reward")
    assert first.series("loss") == pytest.approx(second.series("loss"), abs=1e-5)


GOOD = Completion([1, 2], [-0.5, 0.0])


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ([GOOD], "returned 1 completions of 2 prompts"),
        ([GOOD, GOOD, GOOD], "returned 3 completions of 2 prompts"),
        ([GOOD, Completion([], [])], "a completion of 0 tokens"),
        ([GOOD, Completion([1] * 5, [-1.0] * 5)], "a completion of 5 tokens, where 1 to 4"),
        ([GOOD, Completion([1, 2], [-0.5])], "1 log-probabilities for 2 tokens"),
        ([GOOD, Completion([1], [float("nan")])], "returned nan"),
        ([GOOD, Completion([1], [float("-inf")])], "returned -inf"),
        ([GOOD, Completion([1], [0.7])], "returned 0.7"),
    ],
)
def test_answers_that_cannot_be_stop_the_run(made, why) -> None:
    check([GOOD, GOOD], ["a", "b"], 4)
    with pytest.raises(GymError) as caught:
        check(made, ["row a", "row b"], 4)
    assert why in str(caught.value)
    assert len(made) != 2 or "row b" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 4


def test_the_local_engine_answers_in_the_precision_that_is_trained_in(tiny_model) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32), Tokenizer(tiny_model)
    full = LocalEngine(LocalEngineConfig(), adapted=Full(None, model), tokenizer=tokenizer, precision="fp32")
    half = LocalEngine(LocalEngineConfig(), adapted=Full(None, model), tokenizer=tokenizer, precision="bf16")
    assert full.exact and not half.exact
    exact, close = (engine.generate(RolloutRequest(PROMPTS, 8)) for engine in (full, half))
    assert [answer.log_probs for answer in exact] == [
        answer.log_probs for answer in Generator(model, tokenizer).generate(PROMPTS, 8)
    ]
    first = torch.tensor([[a.log_probs[0], b.log_probs[0]] for a, b in zip(exact, close, strict=True)])
    assert 0 < float((first[:, 0] - first[:, 1]).abs().max()) < 0.1


def test_a_request_numbers_its_prompts_and_refuses_other_counts() -> None:
    assert list(RolloutRequest(PROMPTS, 8).streams) == [0, 1, 2]
    assert RolloutRequest(PROMPTS, 8, streams=[7, 8, 9]).streams == [7, 8, 9]
    with pytest.raises(GymError, match="2 streams for 3 prompts"):
        RolloutRequest(PROMPTS, 8, streams=[7, 8])


def test_the_local_engine_answers_where_frozen_weights_are_in_bf16(tiny_model) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    adapted = LoRA(rank=4).build(model=model, seed=0)
    engine = LocalEngine(LocalEngineConfig(), adapted=adapted, tokenizer=Tokenizer(tiny_model), precision="bf16")
    check(engine.generate(RolloutRequest(PROMPTS, 8, 1.0)), ["a", "b", "c"], 8)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_later_turn_computes_what_is_new(tiny_model, precision) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32), Tokenizer(tiny_model)
    computed = list[int]()
    model.get_input_embeddings().register_forward_pre_hook(lambda _, given: computed.append(given[0].numel()))

    def asked(size: int, turns: dict[str, Any] | None) -> tuple[list[Completion], int]:
        """Return a second turn, and how many tokens of its prompts were computed."""
        config = LocalEngineConfig(prefix_cache_bytes=size)
        engine = LocalEngine(config, adapted=Full(None, model), tokenizer=tokenizer, precision=precision)
        texts = [[5 + (number + place) % 200 for place in range(70)] for number in (0, 0, 9)]
        first = engine.generate(RolloutRequest(texts, 30, 1.0, turns=turns))
        texts = [[*text, *made.tokens, 30, 31, 32] for text, made in zip(texts, first, strict=True)]
        computed.clear()
        return engine.generate(RolloutRequest(texts, 8, 1.0, seed=1, turns=turns)), computed[0]

    (plain, whole), (_, other), (kept, new) = asked(2**20, None), asked(0, {}), asked(2**30, {})
    assert whole == other > 3 * 73 and new <= 3 * (16 + 4)
    rounding = 1e-5 if precision == "fp32" else 0.05
    for one, two in zip(plain, kept, strict=True):
        assert one.log_probs[0] == pytest.approx(two.log_probs[0], abs=rounding)
        assert precision == "bf16" or one.tokens == two.tokens


def test_a_recipe_that_says_how_much_memory_is_kept_can_be_written(bench) -> None:
    rollouts = {"name": "local", "prefix_cache_bytes": "2MB"}
    made = load_recipe(bench.recipe({"name": "rloo", "rewards": REWARDS, "rollouts": rollouts}, "prompt"))
    again = load_recipe(yaml.safe_load(yaml.safe_dump(made.canonical())))
    assert again.canonical()["algorithm"]["rollouts"]["prefix_cache_bytes"] == 2_000_000
    assert again.fingerprint() == made.fingerprint()
