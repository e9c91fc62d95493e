"""Rollouts: which prompts are asked, what is kept of the answers, and the batches that they become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_rl_bench import prompts, rounds
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core import DataError, Train
from gym_data.tokenizer import Tokenizer
from gym_rewards import Length, RewardInput
from gym_rewards.reward_manager import RewardResult
from gym_rl import RLOO, LocalEngineConfig
from gym_rl.local_engine import LocalEngine
from gym_rl.rollouts.batch import RolloutBatch
from gym_rl.rollouts.generate_and_score import RolloutGenerator
from gym_rl.rollouts.log_probs import Scoring, scored
from gym_rl.rollouts.rollout_loop import Rollouts
from gym_rl.unclipped_objective import Reinforce
from gym_testkit import tiny
from gym_torch.model.adapted import Full
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED, PADDED
from gym_torch.policy import Policy
from gym_torch.source import Step

torch.set_num_threads(1)
LIMIT = 6


def judge(answers: Sequence[RewardInput]) -> RewardResult:
    scores = [float(sum(map(ord, answer.text)) % 7) for answer in answers]
    return RewardResult({"seven": scores}, scores)


def judge_some(answers: Sequence[RewardInput]) -> RewardResult:
    said = judge(answers)
    return RewardResult(said.scores, [None if score == 6 else score for score in said.totals])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("rollouts") / "model", 0)


@pytest.fixture
def model(path: Path) -> PreTrainedModel:
    found = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    assert layout_for(found) is PACKED
    return found


def engine(model: PreTrainedModel, tokenizer: Tokenizer) -> LocalEngine:
    return LocalEngine(LocalEngineConfig(), adapted=Full(None, model), tokenizer=tokenizer, precision="fp32")


def source(
    model: PreTrainedModel,
    path: Path,
    fingerprint: str = "a",
    scoring: Scoring = lambda experience, batches: {},
    judge: Callable[[Sequence[RewardInput]], RewardResult] = judge,
    **options: Any,
) -> Rollouts:
    tokenizer = Tokenizer(path)
    train = Train(**{"batch_size": 4, "accumulate": 2, **options.pop("train", {})})
    config = RLOO(rewards=[Length()], **{"group_size": 4, "max_new_tokens": LIMIT, **options})
    generator = RolloutGenerator(config, prompts(6), engine(model, tokenizer), tokenizer, judge, train.seed)
    return Rollouts(generator, train, PACKED, fingerprint, scoring)


def answers(steps: Sequence[Step]) -> list[tuple[Any, ...]]:
    return [
        (answer.id, answer.tokens.tolist(), {name: each.tolist() for name, each in answer.columns.items()})
        for step in steps
        for batch in step.batches
        for answer in batch
    ]


def test_every_prompt_is_asked_and_every_answer_learnt_from_once(model, path) -> None:
    rollouts = source(model, path)
    steps = list(rollouts.steps(0))
    assert rollouts.total == len(steps) == 3
    found = [answer for step in steps for batch in step.batches for answer in batch]
    assert sorted(answer.prompt.id for answer in found) == sorted([prompt.id for prompt in prompts(6)] * 4)
    assert all([len(batch) for batch in step.batches] == [4, 4] for step in steps)
    assert all(0 < len(answer.tokens) <= LIMIT and answer.trained.all() for answer in found)
    assert len({tuple(answer.tokens) for answer in found}) > 12
    assert [step.epoch for step in steps] == pytest.approx([1 / 3, 2 / 3, 1], abs=1e-5)
    for step in steps:
        assert {"reward", "reward_std", "rewards/seven/mean", "frac_reward_zero_std"} <= step.metrics.keys()
        sizes = [len(answer.tokens) for batch in step.batches for answer in batch]
        found = [step.metrics[f"completions/{name}_length"] for name in ("min", "mean", "max")]
        assert found == pytest.approx([min(sizes), sum(sizes) / len(sizes), max(sizes)])
        assert step.metrics["rewards/seven/std"] == pytest.approx(step.metrics["reward_std"])


def test_a_last_round_of_fewer_prompts_has_fewer_steps(model, path) -> None:
    rollouts = source(model, path, num_mini_batches=4, train={"batch_size": 4, "accumulate": 1})
    steps = list(rollouts.steps(0))
    assert rollouts.total == len(steps) == 6  # six prompts, four in a whole round
    assert [sum(map(len, step.batches)) for step in steps] == [4] * 6
    assert steps[-1].epoch == pytest.approx(1)


def test_the_answers_follow_from_the_recipe_and_the_weights(model, path) -> None:
    first = answers(list(source(model, path).steps(0)))
    assert answers(list(source(model, path).steps(0))) == first
    assert answers(list(source(model, path).steps(1))) == first[8:]
    assert answers(list(source(model, path, train={"seed": 1}).steps(0))) != first


def test_a_round_goes_on_after_a_checkpoint_whatever_the_weights_are_now(model, path) -> None:
    rollouts = source(model, path, num_mini_batches=2, train={"batch_size": 4, "accumulate": 1})
    steps = rollouts.steps(0)
    next(steps)
    state, tensors = rollouts.state_dict(), {name: value.clone() for name, value in rollouts.tensors().items()}
    wanted = next(steps)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1)
    again = source(model, path, num_mini_batches=2, train={"batch_size": 4, "accumulate": 1})
    again.load_state_dict(state, tensors)
    found = next(again.steps(1))
    assert answers([found]) == answers([wanted])
    assert (found.epoch, found.metrics) == (wanted.epoch, wanted.metrics)
    with pytest.raises(DataError):
        source(model, path, fingerprint="b").load_state_dict(state, tensors)


def test_what_was_sampled_is_what_the_policy_says(model, path) -> None:
    (step, *_) = source(model, path, temperature=0.7).steps(0)
    objective = Reinforce(RLOO(rewards=[Length()], temperature=0.7), PACKED)
    policy = Policy(model, temperature=objective.temperature)
    for batch in map(objective.collate, step.batches):
        torch.testing.assert_close(policy(batch), batch.sampling_log_probs, rtol=0, atol=2e-5)


@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=["packed", "padded"])
def test_loss_and_gradient_agree_with_the_formula_in_float64(model, path, layout) -> None:
    (step, *_) = source(model, path).steps(0)
    config = RLOO(rewards=[Length()])
    exact = AutoModelForCausalLM.from_pretrained(path).double()
    wanted, total, weight = torch.zeros((), dtype=torch.float64), torch.zeros(()), 0.0
    if layout is PADDED:
        model.set_attn_implementation("eager")
    objective, policy = Reinforce(config, layout), Policy(model)
    for examples in step.batches:
        batch = objective.collate(examples)
        assert isinstance(batch, RolloutBatch)
        total, weight = total + objective.loss(policy, batch)[0], weight + objective.weight(batch)
        for answer in examples:
            prompt = answer.prompt.tokens.tolist()
            logits = exact(input_ids=torch.tensor([prompt + answer.tokens.tolist()])).logits[0, len(prompt) - 1 : -1]
            chosen = logits.log_softmax(1).gather(1, torch.tensor(answer.tokens, dtype=torch.long)[:, None]).sum()
            wanted = wanted - float(answer.columns["advantages"][0]) * chosen
    assert weight == 8
    assert total.item() == pytest.approx(wanted.item(), rel=1e-4)
    total.backward()
    wanted.backward()
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        assert (ours.grad.double() - theirs.grad).norm() <= 1e-4 * theirs.grad.norm() + 1e-9


def test_a_prompt_is_computed_once_for_all_its_answers(model, path) -> None:
    (step, *_) = source(model, path).steps(0)
    batch = Reinforce(RLOO(rewards=[Length()]), PACKED).collate(step.batches[0])
    assert batch.size == len(step.batches[0][0].prompt.tokens) + sum(len(answer.tokens) for answer in step.batches[0])


def test_a_group_larger_than_a_pass_is_cut(model, path) -> None:
    whole = source(model, path)
    small = source(model, path, train={"batch_size": 2, "accumulate": 4})
    assert sorted(answers(list(small.steps(0)))) == sorted(answers(list(whole.steps(0))))
    (step, *_) = small.steps(0)
    assert [len(batch) for batch in step.batches] == [2] * 4
    assert all(len({answer.group for answer in batch}) == 1 for batch in step.batches)


def test_answers_that_nothing_judged_are_not_learnt_from(model, path) -> None:
    rollouts = source(model, path, judge=judge_some)
    step = next(rollouts.steps(0))
    unjudged = rollouts.experience.rewards.isnan()
    assert (
        0 < unjudged.sum() < 8
        and (rollouts.experience.columns["advantages"][unjudged[rollouts.experience.owner]] == 0).all()
    )
    learnt = [answer for batch in step.batches for answer in batch]
    assert {answer.number for answer in learnt} == set((~unjudged).nonzero().flatten().tolist())
    assert not step.idle and step.metrics["steps_without_update"] == 0


def test_what_is_not_learnt_from_leaves_a_constant_as_it_is(model, path) -> None:
    """Dr. GRPO divides by the answers of a step and the longest that one may be, whatever became of them."""

    config = RLOO(rewards=[Length()], loss_agg_mode="seq-mean-token-sum-norm", max_new_tokens=LIMIT)
    objective = Reinforce(config, PACKED)
    for chosen in (judge, judge_some):
        (step, *_) = source(model, path, judge=chosen).steps(0)
        assert sum(map(objective.weight, map(objective.collate, step.batches))) == pytest.approx(8 * LIMIT)


def test_where_nothing_is_judged_a_step_is_idle(model, path) -> None:
    nothing = source(model, path, judge=lambda answers: RewardResult({}, [None] * len(answers)))
    steps = list(nothing.steps(0))
    assert steps and all(step.idle and step.metrics["steps_without_update"] == 1 for step in steps)


def passes(model: PreTrainedModel) -> Scoring:
    """Return a scoring with what the policy says, and the position of each token in its batch."""
    objective, policy = Reinforce(RLOO(rewards=[Length()]), PACKED), Policy(model)
    columns = {"trainer": policy, "place": lambda batch: batch.target_index.float()}
    return lambda experience, batches: scored(experience, batches(), columns, objective.collate, torch.device("cpu"))


def test_what_is_scored_before_a_round_is_what_its_update_computes(model, path) -> None:
    """Bit for bit: a pass sees the very batches of the update."""
    objective, policy = Reinforce(RLOO(rewards=[Length()]), PACKED), Policy(model)
    steps = list(source(model, path, scoring=passes(model), num_mini_batches=2, max_new_tokens=4).steps(0))
    assert len(steps) > 2
    for batch in (objective.collate(answers) for step in steps for answers in step.batches):
        torch.testing.assert_close(batch.columns["trainer"], policy(batch), rtol=0, atol=0)
        assert torch.equal(batch.columns["place"], batch.target_index.float())


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_what_is_scored(model, path, world: int) -> None:
    """Each answer is scored in one process; together they have all of them, in order."""
    rollouts = source(model, path)
    next(rollouts.steps(0))
    shares = [
        [
            answer.number
            for batch in rollouts.mini_batches.own_share(rollouts.experience, rank, world)
            for answer in batch
        ]
        for rank in range(world)
    ]
    assert sum(map(bool, shares)) == 2, "there are two batches"
    assert sorted(number for share in shares for number in share) == list(range(8))


def test_scored_columns_are_kept_in_a_checkpoint(model, path) -> None:
    rollouts = source(model, path, scoring=passes(model), num_mini_batches=2, train={"batch_size": 4, "accumulate": 1})
    steps = rollouts.steps(0)
    next(steps)
    state, tensors = rollouts.state_dict(), {name: value.clone() for name, value in rollouts.tensors().items()}
    assert tensors["columns/trainer"].shape == tensors["tokens"].shape
    wanted = answers([next(steps)])

    def never(experience: object, batches: object) -> dict[str, torch.Tensor]:
        raise AssertionError("a round under way is not scored again")

    again = source(model, path, scoring=never, num_mini_batches=2, train={"batch_size": 4, "accumulate": 1})
    again.load_state_dict(state, tensors)
    assert answers([next(again.steps(1))]) == wanted


@pytest.mark.parametrize("length", [{"epochs": 2}, {"max_steps": 9}])
def test_a_longer_run_goes_on_behind_a_round_that_the_data_cut_short(path: Path, length: dict[str, int]) -> None:
    """Two prompts a round, a step for each: the third round of five prompts has one of both."""

    def source(**train: int) -> Rollouts:
        return rounds(path, count=5, num_mini_batches=2, train={"batch_size": 4, "accumulate": 1, **train})

    def asked(steps: Sequence[Step]) -> list[str]:
        return [name for step in steps for name in {answer.prompt.id for batch in step.batches for answer in batch}]

    shorter = source(epochs=1)
    assert sorted(asked(list(shorter.steps(0)))) == [f"row {number}" for number in range(5)]
    whole, again = source(**length), source(**length)
    whole.extend(shorter.state_dict(), 5)
    whole.load_state_dict(shorter.state_dict(), shorter.tensors())
    steps = whole.steps(5)
    first = [next(steps) for _ in range(2)]
    state, tensors = whole.state_dict(), {name: tensor.clone() for name, tensor in whole.tensors().items()}
    rest = list(steps)
    assert len({*asked(first), *asked(rest)}) == len(first + rest) == whole.total - 5
    again.extend(state, 7)
    again.load_state_dict(state, tensors)
    assert asked(list(again.steps(7))) == asked(rest)
