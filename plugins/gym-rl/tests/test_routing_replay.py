"""Routing replay of a tiny Qwen3-MoE: what was recorded in a round is what its update forces, after a resume too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gym_rl_bench import arbitrary, prompts
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from gym_core import GymError, Train
from gym_data.tokenizer import Tokenizer
from gym_rewards import Length, RewardInput
from gym_rewards.reward_manager import RewardResult
from gym_rl import RLOO, LocalEngineConfig
from gym_rl.local_engine import LocalEngine
from gym_rl.rollouts.batch import RolloutBatch
from gym_rl.rollouts.dynamic_sampling import concatenate, group_count, select_groups
from gym_rl.rollouts.generate_and_score import RolloutGenerator
from gym_rl.rollouts.rollout_loop import Rollouts
from gym_rl.unclipped_objective import Reinforce
from gym_testkit import tiny
from gym_torch.model.adapted import Full
from gym_torch.model.expert_routing import FREE, Routers
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED, PADDED, Layout
from gym_torch.policy import Policy

LAYERS, CHOSEN = 3, 2
REWARDS = [{"name": "regex", "pattern": "[a-m]"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random mixture with the tokenizer of the tiny model."""
    torch.set_num_threads(1)
    folder = tiny.write_model(tmp_path_factory.mktemp("mixture") / "model", 0)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": LAYERS, "vocab_size": tiny.VOCABULARY}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    experts = {"num_experts": 6, "num_experts_per_tok": CHOSEN, "moe_intermediate_size": 16, "norm_topk_prob": True}
    ends = {"eos_token_id": 258, "pad_token_id": 256}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **heads, **experts, **ends))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.2)
    model.save_pretrained(folder)
    return folder


def judge(answers: Sequence[RewardInput]) -> RewardResult:
    scores = arbitrary(answers)
    return RewardResult({"arbitrary": scores}, scores, {})


class Case:
    """A mixture, its routers, and rollouts that record."""

    def __init__(self, path: Path, layout: Layout = PACKED, records: bool = True) -> None:
        self.model, self.layout = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), layout
        if layout is PACKED:
            assert layout_for(self.model) is PACKED
        self.routers, tokenizer = Routers(self.model), Tokenizer(path)
        engine = LocalEngine(
            LocalEngineConfig(),
            adapted=Full(None, self.model),
            tokenizer=tokenizer,
            precision="fp32",
            routers=self.routers if records else None,
        )
        self.config = RLOO(rewards=[Length()], group_size=4, max_new_tokens=6, num_mini_batches=2, routing_replay=True)
        generator = RolloutGenerator(self.config, prompts(4), engine, tokenizer, judge)
        train = Train(batch_size=4, accumulate=1)
        self.source = Rollouts(generator, train, layout, "a")
        self.objective = Reinforce(self.config, layout)

    def batches(self, number: int = 2) -> list[RolloutBatch]:
        steps = self.source.steps(0)
        return [self.objective.collate(examples) for _ in range(number) for examples in next(steps).batches]

    def perturb(self) -> None:
        torch.manual_seed(1)
        with torch.no_grad():
            for router in self.routers.routers:
                router.module.weight.add_(torch.randn_like(router.module.weight))

    def gradients(self, batch: RolloutBatch) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the log-probabilities of a batch and the gradients of its loss."""
        self.model.zero_grad()
        policy = Policy(self.model)
        self.objective.loss(policy, batch)[0].backward()
        return policy(batch).detach(), [weight.grad.clone() for weight in self.model.parameters()]


@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=lambda layout: layout.name)
def test_forced_is_free_until_something_was_learnt(path, layout) -> None:
    case = Case(path, layout)
    for batch in case.batches():
        assert "experts" not in batch.columns
        free, gradients = case.gradients(replace(batch, experts=None))
        forced, others = case.gradients(batch)
        torch.testing.assert_close(forced, free, rtol=0, atol=1e-6)
        torch.testing.assert_close(forced, batch.sampling_log_probs, rtol=0, atol=2e-5)
        for ours, theirs in zip(others, gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_what_the_update_forces_is_what_was_recorded(path) -> None:
    case = Case(path)
    (batch, *_) = case.batches()
    case.perturb()
    free, _ = case.gradients(replace(batch, experts=None))
    forced, gradients = case.gradients(batch)
    assert not torch.allclose(free, forced, atol=1e-3), "the routers still choose"
    assert all(gradient.abs().sum() > 0 for gradient in gradients), "the routers learn"
    assert case.source.experience is not None
    for answer in case.source.experience.rollouts(prompts(4))[:4]:
        text = torch.tensor([[*answer.prompt.tokens.tolist(), *answer.tokens.tolist()]])
        experts = torch.from_numpy(np.concatenate([answer.prompt_experts, answer.columns["experts"]]))
        assert (experts[-1] == FREE).all() and (experts[:-1] >= 0).all()
        _, taken = case.routers.record(
            partial(case.model.base_model, input_ids=text, use_cache=False, experts=experts[None])
        )
        assert torch.equal(taken[:-1], experts[:-1])


def test_a_round_keeps_a_prompt_once_for_all_its_answers_and_takes_little(path) -> None:
    case = Case(path)
    case.batches(1)
    experience = case.source.experience
    assert experience is not None
    tensors = case.source.tensors()
    assert tensors["columns/experts"].shape == (len(experience.tokens), LAYERS, CHOSEN)
    longest = max(len(prompts(4)[int(index)].tokens) for index in experience.prompts)
    assert tensors["prompt_experts"].shape == (len(experience.prompts) // 4, longest, LAYERS, CHOSEN)
    assert tensors["columns/experts"].dtype == tensors["prompt_experts"].dtype == torch.int16


def test_groups_take_their_routing_along(path) -> None:
    case = Case(path)
    case.batches(1)
    experience = case.source.experience
    assert experience is not None
    first = torch.arange(group_count(experience)) == 0
    parts = [select_groups(experience, ~first), select_groups(experience, first)]
    assert [group_count(part) for part in parts] == [1, 1]
    parts.insert(0, select_groups(parts[0], torch.tensor([False])))  # of which nothing is left
    wanted = {answer.id.partition("/")[0]: answer for answer in experience.rollouts(prompts(4))}
    for answer in concatenate(parts).rollouts(prompts(4)):
        known = wanted[answer.id.partition("/")[0]].prompt_experts
        assert len(known) == len(answer.prompt.tokens) and (known >= 0).all()
        assert (answer.prompt_experts == known).all()


def test_a_round_under_way_is_replayed_after_a_resume(path) -> None:
    case = Case(path)
    steps = case.source.steps(0)
    next(steps)
    state, tensors = case.source.state_dict(), {name: each.clone() for name, each in case.source.tensors().items()}
    wanted = [case.objective.collate(examples) for examples in next(steps).batches]
    again = Case(path)
    again.perturb()  # other weights would route and answer otherwise
    again.source.load_state_dict(state, tensors)
    found = [again.objective.collate(examples) for examples in next(again.source.steps(1)).batches]
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours.experts, theirs.experts) and torch.equal(ours.tokens, theirs.tokens)


def test_an_engine_that_does_not_record_is_refused(path) -> None:
    with pytest.raises(GymError, match="does not record which experts"):
        Case(path, records=False).batches(1)


def recipe(bench, path: Path, **options: Any) -> dict[str, Any]:
    algorithm = {
        "name": "rloo",
        "rewards": REWARDS,
        "max_new_tokens": 8,
        "group_size": 4,
        "num_mini_batches": 2,
        **options,
    }
    made = bench.recipe(algorithm, "prompt")
    return {**made, "model": str(path)}


def test_a_run_replays_with_layers_computed_again_too(bench, path) -> None:
    plain = recipe(bench, path, routing_replay=True)
    whole = bench.run(plain, max_steps=4)
    assert max(whole.series("reward_std")) > 0, "nothing is learnt here"
    again = bench.run(plain, name="again", max_steps=4, gradient_checkpointing=True)
    assert whole.series("loss") == pytest.approx(again.series("loss"), abs=1e-5)
    free = bench.run(recipe(bench, path), name="free", max_steps=4)
    assert whole.series("loss")[0] == pytest.approx(free.series("loss")[0], abs=1e-5), "forced = free at first"
    assert whole.series("loss")[-1] != pytest.approx(free.series("loss")[-1], abs=1e-7)


def test_a_model_without_experts_is_refused(bench) -> None:
    with pytest.raises(GymError, match="has no routers"):
        bench.run(recipe(bench, bench.model(), routing_replay=True))
