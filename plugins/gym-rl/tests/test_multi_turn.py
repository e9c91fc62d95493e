"""Completions of several turns: what was sampled after what, what is trained on, and how much of it there may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from gym_rl_bench import algorithm, interrupted
from gym_turns_bench import END, TOKENIZER, questions
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core import Train
from gym_rewards import RewardInput
from gym_rewards.reward_manager import RewardResult
from gym_rl import Action, Environment, StepResult
from gym_rl.config.local_engine import LocalEngineConfig
from gym_rl.environment import CALLS, FAILED_CALLS
from gym_rl.environments.config import EnvironmentReward
from gym_rl.local_engine import LocalEngine
from gym_rl.objective import PolicyObjective
from gym_rl.rollout_engine import RolloutRequest
from gym_rl.rollouts.dynamic_sampling import concatenate, select_groups
from gym_rl.rollouts.experience import Experience
from gym_rl.rollouts.generate_and_score import RolloutGenerator
from gym_rl.rollouts.metrics import rollout_metrics
from gym_rl.rollouts.multi_turn import MultiTurn, total
from gym_rl.rollouts.rollout_loop import Rollouts
from gym_testkit.bench import Bench
from gym_tiny.family import MODEL
from gym_torch.generation.row import Completion
from gym_torch.model.adapted import Full
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED, PADDED, Layout
from gym_torch.policy import Policy

GUESS = {"name": "python", "environment": "gym_rl.environments.guess_number:GuessNumber", "max_turns": 3}


@dataclass
class Again:
    """Asks as often as the row says, each time for longer, and earns what the turn's text has in letters."""

    left: int
    asked: int = 0

    def step(self, action: Action) -> StepResult:
        self.asked += 1
        more = [{"role": "user", "content": "go on " * self.asked}] if self.asked <= self.left else []
        logged = {CALLS: 2, FAILED_CALLS: self.asked == 2, **({"late": 4.0} if self.asked > 1 else {})}
        return StepResult(more, float(len(action.text)), logged)


def again(row: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Again:
    return Again(int(row["times"]))


def judged(answers: Sequence[RewardInput]) -> RewardResult:
    scores = EnvironmentReward().build()(answers)
    return RewardResult({"environment": scores}, scores, {})


def model() -> PreTrainedModel:
    found: PreTrainedModel = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    assert layout_for(found) is PACKED
    return found


def played() -> Rollouts:
    """Return rollouts of the packaged model, which ends most of its answers."""
    engine = LocalEngine(LocalEngineConfig(), adapted=Full(None, model()), tokenizer=TOKENIZER, precision="fp32")
    config = algorithm(max_new_tokens=90, group_size=4, num_mini_batches=2)
    turns = MultiTurn(Environment(max_turns=4), again, TOKENIZER)
    train = Train(batch_size=4, accumulate=2)
    generator = RolloutGenerator(config, questions(), engine, TOKENIZER, judged, train.seed, multi_turn=turns)
    return Rollouts(generator, train, PACKED, "a")


@pytest.fixture(scope="module")
def experience() -> Experience:
    rollouts = played()
    next(rollouts.steps(0))
    assert rollouts.experience is not None
    return rollouts.experience


@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=lambda layout: layout.name)
def test_each_token_is_trained_on_after_what_it_was_sampled_after(experience: Experience, layout: Layout) -> None:
    answers = experience.rollouts(questions())
    batch = PolicyObjective.collate(Plain(algorithm(), layout), answers)
    assert batch.targets.tolist() == experience.tokens.tolist()
    assert torch.equal(batch.owner, experience.owner)
    own, plain = model(), AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    if layout is PADDED:
        own = plain
    with torch.no_grad():
        found = Policy(own)(batch)
        exact = []
        for answer in answers:
            text = np.concatenate([answer.prompt.tokens, answer.tokens]).tolist()
            logits = plain(input_ids=torch.tensor([text])).logits[0].log_softmax(-1)
            places = len(answer.prompt.tokens) + np.flatnonzero(answer.trained)
            exact += [logits[at - 1, text[at]] for at in places]
    torch.testing.assert_close(found, torch.stack(exact), rtol=0, atol=2e-5)
    torch.testing.assert_close(experience.columns["sampling_log_probs"], torch.stack(exact), rtol=0, atol=2e-5)


class Plain(PolicyObjective):
    """Lays out; its loss is never asked for."""

    def tokens(self, log_probs: torch.Tensor, batch: Any) -> Mapping[str, torch.Tensor]:
        raise NotImplementedError


def test_a_completion_reads_as_the_template_writes_the_conversation(experience: Experience) -> None:
    """Where answers end as the template has them end: the tokens of an environment are those of its messages."""
    seen = 0
    for answer in experience.rollouts(questions()):
        text = TOKENIZER.decode(answer.tokens)
        parts = [part.split("<|im_start|>assistant\n")[-1] for part in text.split("<|im_end|>\n<|im_start|>user\n")]
        asked = [part.split("<|im_end|>")[0] for part in text.split("<|im_start|>user\n")[1:]]
        messages = list(answer.prompt.messages)  # type: ignore[attr-defined]
        for place, part in enumerate(parts):
            messages.append({"role": "assistant", "content": part.removesuffix("<|im_end|>")})
            messages += [{"role": "user", "content": asked[place]}] if place < len(asked) else []
        written = TOKENIZER.chat(messages)[0].tolist()
        whole = [*answer.prompt.tokens.tolist(), *answer.tokens.tolist()]
        if answer.tokens[-1] == END and TOKENIZER.decode(written) == TOKENIZER.decode(whole) + "\n":
            seen += len(asked)
            untrained = answer.tokens[~answer.trained]
            assert TOKENIZER.decode(untrained) == "".join(
                f"\n<|im_start|>user\n{each}<|im_end|>\n<|im_start|>assistant\n" for each in asked
            )
    assert seen > 4


def test_rewards_and_metrics_are_of_all_turns(experience: Experience) -> None:
    answers = experience.rollouts(questions())
    sizes = experience.columns["observation_size"]
    assert sizes.sum() == sum((~answer.trained).sum() for answer in answers) > 0
    said = rollout_metrics(experience)
    assert said["completions/mean_observation_length"] == pytest.approx(float(sizes.sum()) / len(answers))
    assert 1 < said["num_turns/mean"] <= 3
    assert said["rewards/environment/mean"] == said["reward"] > 0
    turns = [len(answer.columns["observation_size"].nonzero()[0]) + 1 for answer in answers]
    assert said["tools/call_frequency"] == pytest.approx(2 * np.mean(turns))
    late = [turn for turn in turns if turn > 1]
    assert said["tools/failure_frequency"] == pytest.approx(len(late) / sum(2 * turn for turn in turns))
    assert said["environment/late"] == pytest.approx(4 * np.mean([turn - 1 for turn in late]))


@pytest.mark.parametrize(
    ("dealt", "whole"), [([0.1, 0.1, 0.1], 0.3), ([-1.0, 0.7], -0.3), ([0.7, 1e3, -1e3], 0.7), ([], 0.0), ([0.0], 0.0)]
)
def test_rewards_that_are_the_same_are_so_to_the_last_bit(dealt: list[float], whole: float) -> None:
    """Completions that earned the same by different turns teach nothing: dynamic sampling asks others in their place."""
    assert total(dealt) == total([whole] if whole else []) == whole


@given(st.floats(-1e38, 1e38))
def test_the_reward_of_one_turn_is_kept(reward: float) -> None:
    assert total([reward]) == pytest.approx(reward, rel=1e-11, abs=0)


def test_groups_keep_what_they_were_shown(experience: Experience) -> None:
    """Through a checkpoint, and where dynamic sampling parts and joins rounds."""
    told = Experience.from_tensors(experience.tensors())
    chosen = torch.tensor([number % 2 == 1 for number in range(int(told.groups[-1]) + 1)])
    parted = concatenate([select_groups(told, chosen), select_groups(told, ~chosen)])
    logged = rollout_metrics(parted)
    assert {
        name: value for name, value in rollout_metrics(told).items() if name.startswith(("tools/", "environment/"))
    } == {
        name: pytest.approx(logged[name])
        for name in ("tools/call_frequency", "tools/failure_frequency", "environment/late")
    }
    by_name = {(one.prompt.id, one.number % 4): one for one in experience.rollouts(questions())}
    for one in parted.rollouts(questions()):
        other = by_name[one.prompt.id, one.number % 4]
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.trained.tolist() == other.trained.tolist()


@pytest.mark.parametrize("done", [0, 1])
def test_a_round_is_taken_up_where_it_stood(done: int) -> None:
    for one, other in zip(*interrupted(played, done), strict=True):
        pairs = zip(
            (answer for batch in one.batches for answer in batch),
            (answer for batch in other.batches for answer in batch),
            strict=True,
        )
        for left, right in pairs:
            assert left.tokens.tolist() == right.tokens.tolist()
            assert left.columns["advantages"].tolist() == right.columns["advantages"].tolist()


@st.composite
def scripts(draw: st.DrawFn) -> list[list[tuple[int, bool]]]:
    """Draw for each of some rows the length of each turn, and whether the model ends it."""
    turn = st.tuples(st.integers(1, 9), st.booleans())
    return draw(st.lists(st.lists(turn, min_size=4, max_size=4), min_size=1, max_size=4))


@settings(max_examples=150, deadline=None)
@given(scripts(), st.integers(1, 60), st.integers(1, 4), st.integers(0, 4))
def test_no_completion_is_longer_than_it_may_be(
    script: list[list[tuple[int, bool]]], most: int, turns: int, times: int
) -> None:
    streams = list[int]()
    rows = [replace(questions(1)[0], id=str(row), row={"times": times}) for row in range(len(script))]

    def generate(request: RolloutRequest, names: Sequence[str]) -> list[Completion]:
        """Write what the script has, up to the limit."""
        streams.extend(request.streams)
        made = []
        for prompt, limit, name, stream in zip(request.prompts, request.limits, names, request.streams, strict=True):
            length, ends = script[int(name)][stream >> 40]
            assert limit > 0 and len(prompt) + limit <= len(rows[0].tokens) + most, (
                "more positions than the model may have"
            )
            assert prompt[: len(rows[0].tokens)] == rows[0].tokens.tolist()
            tokens = [7] * (length - 1) + [END if ends else 7]
            tokens = tokens[: request.max_new_tokens]
            made.append(Completion(tokens, [-1.0] * len(tokens), tokens[-1] == END))
        return made

    play = MultiTurn(Environment(max_turns=turns), again, TOKENIZER)
    request = RolloutRequest([row.tokens.tolist() for row in rows], most)
    found = play(rows, request, generate)
    assert len(set(streams)) == len(streams), "two turns had the same random numbers"
    for one in found:
        made = one.completion
        assert 0 < len(one.tokens) == one.size <= most
        assert len(made.tokens) == len(made.log_probs) and max(one.observations, default=0) < len(made.tokens)
        assert not made.finished or made.tokens[-1] == END
        said = [turn for turn in one.turns if turn["role"] == "assistant"]
        assert len(said) == len(one.observations) + 1 <= turns and one.turns[-1] == said[-1]
        assert one.text == said[-1]["content"] and one.reward == sum(len(turn["content"]) for turn in said)
        assert made.finished == (len(said) == times + 1 and made.tokens[-1] == END)


@pytest.mark.parametrize(
    "algorithm", [{"name": "grpo", "top_p": 0.9}, {"name": "ppo"}, {"name": "remax"}], ids=lambda each: each["name"]
)
def test_runs_train_on_turns(bench: Bench, algorithm: dict[str, Any]) -> None:
    rows = [{"prompt": f"Guess {number}.", "answer": str(number % 3)} for number in range(8)]
    options = {"environment": GUESS, "rewards": ["environment"], "group_size": 2, "max_new_tokens": 48}
    recipe = bench.recipe(algorithm | options, "prompt", max_steps=3, batch_size=4)
    done = bench.run(recipe | {"model": "tiny", "data": str(bench.file(rows))})
    assert all(value > 1 for value in done.series("num_turns/mean"))
    assert all(np.isfinite(value) for value in done.series("loss"))
