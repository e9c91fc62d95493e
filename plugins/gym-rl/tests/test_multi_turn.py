"""Completions of several turns: what was sampled after what, what is trained on, and how much of it there may be."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gym_rl_bench import Prompt, Prompts, algorithm, interrupted
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core import GymError, RecipeError, Train, load_recipe
from gym_data.tokenizer import Tokenizer
from gym_rewards import RewardInput
from gym_rewards.reward_manager import RewardResult
from gym_rl import Action, Environment, PolicyGradient, StepResult
from gym_rl.config.local_engine import LocalEngineConfig
from gym_rl.environment import Call
from gym_rl.environments.config import EnvironmentReward, PythonEnvironment, ToolsEnvironment
from gym_rl.local_engine import LocalEngine
from gym_rl.objective import PolicyObjective
from gym_rl.rollout_engine import RolloutRequest
from gym_rl.rollouts.dynamic_sampling import concatenate, select_groups
from gym_rl.rollouts.experience import Experience
from gym_rl.rollouts.generate_and_score import RolloutGenerator
from gym_rl.rollouts.metrics import rollout_metrics
from gym_rl.rollouts.multi_turn import MultiTurn
from gym_rl.rollouts.rollout_loop import Rollouts
from gym_testkit.bench import Bench
from gym_tiny.family import MODEL
from gym_torch.generation.row import Completion
from gym_torch.model.adapted import Full
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED, PADDED, Layout
from gym_torch.policy import Policy

GUESS = {"name": "python", "environment": "gym_rl.environments.guess_number:GuessNumber", "max_turns": 3}
TOKENIZER = Tokenizer(MODEL)
END = TOKENIZER.turn_ends[0]


@dataclass
class Again:
    """Asks as often as the row says, each time for longer, and earns what the turn's text has in letters."""

    left: int
    asked: int = 0

    def step(self, action: Action) -> StepResult:
        self.asked += 1
        more = [{"role": "user", "content": "go on " * self.asked}] if self.asked <= self.left else []
        return StepResult(more, float(len(action.text)))


def again(row: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Again:
    return Again(int(row["times"]))


def questions(count: int = 4) -> Prompts:
    made = Prompts()
    for number in range(count):
        messages = [{"role": "user", "content": f"{number} + {number + 1} = ?"}]
        tokens, _ = TOKENIZER.chat(messages, generation_prompt=True)
        made.append(Prompt(f"row {number}", tokens, np.zeros(len(tokens), bool), messages, {"times": number % 3}))
    return made


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


def test_groups_keep_what_they_were_shown(experience: Experience) -> None:
    """Through a checkpoint, and where dynamic sampling parts and joins rounds."""
    told = Experience.from_tensors(experience.tensors())
    chosen = torch.tensor([number % 2 == 1 for number in range(int(told.groups[-1]) + 1)])
    parted = concatenate([select_groups(told, chosen), select_groups(told, ~chosen)])
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


def user(content: Any, **more: Any) -> StepResult:
    return StepResult([{"role": "user", "content": content, **more}])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (lambda action: 1 / 0, "ZeroDivisionError"),
        (lambda action: sys.exit(2), "SystemExit: 2"),
        (lambda action: 3, "returned a int"),
        (lambda action: StepResult(reward=float("nan")), "a reward of nan"),
        (lambda action: StepResult(reward=None), "a reward of 'None'"),  # type: ignore[arg-type]
        (lambda action: StepResult([{"role": "user"}]), "the content of message 1 .user. is missing"),
        (lambda action: StepResult("Higher."), "a str in place of a list"),  # type: ignore[arg-type]
        (lambda action: StepResult({"role": "user", "content": "a"}), "a dict in place of a list"),  # type: ignore[arg-type]
        (lambda action: StepResult(["Higher."]), "message 1 is not an object"),  # type: ignore[list-item]
        (lambda action: user(np.int64(3)), "is not text but int64"),
        (lambda action: user([{"type": "image", "image": "a.png"}]), "holds more than text"),
        (lambda action: user("a", name=b"me"), "is no plain data"),
        (lambda action: StepResult([{"role": "martian", "content": "a"}]), "No such role: martian"),
        (lambda action: (_ for _ in ()).throw(GymError("the shop is closed")), "the shop is closed"),
    ],
)
def test_what_fails_is_named_with_its_row(said: Any, why: str) -> None:
    class Broken:
        step = staticmethod(said)

    play = MultiTurn(Environment(), lambda row, messages: Broken(), TOKENIZER)
    with pytest.raises(GymError, match=why) as caught:
        play(questions(1), RolloutRequest([[5]], 30), one_turn)
    assert caught.value.problems[0].where == "row row 0" and len(str(caught.value).splitlines()) <= 4


def one_turn(request: RolloutRequest, names: Sequence[str]) -> list[Completion]:
    return [Completion([7, END], [0.0, 0.0], True) for _ in names]


def test_an_environment_that_hangs_ends_the_run_with_its_row() -> None:
    class Slow:
        def __init__(self, row: Mapping[str, Any], messages: object) -> None:
            self.wait = threading.Event().wait if row["times"] == 1 else lambda: None

        def step(self, action: Action) -> StepResult:
            self.wait()
            return StepResult()

    play = MultiTurn(Environment(step_timeout=0.2), Slow, TOKENIZER)
    with pytest.raises(GymError, match="not done after 0") as caught:
        play(questions(2), RolloutRequest([[5], [6]], 30), one_turn)
    assert caught.value.problems[0].where == "row row 1" and not caught.value.problems[0].key.endswith("step_timeout")


def test_what_an_environment_says_is_kept_as_it_was_said() -> None:
    """Its lists are its own; and what a model wrote, which may be no text to its tokenizer, can be said back to it."""

    class Own:
        said: ClassVar[list[dict[str, Any]]] = []

        def step(self, action: Action) -> StepResult:
            self.said.append(
                {"role": "user", "content": [{"type": "text", "text": "\ufdd0<|im_end|>\ud800"}], "name": ("a",)}
            )
            return StepResult(self.said[-1:] if len(self.said) < 2 else (), np.float32(0.5))  # type: ignore[arg-type]

    play = MultiTurn(Environment(), lambda row, messages: Own(), TOKENIZER)
    (found,) = play(questions(1), RolloutRequest([[5]], 60), one_turn)
    Own.said[0]["content"] = "other"
    assert found.turns[1] == {"role": "user", "content": "\ufffd<|im_end|>\ufffd", "name": ["a"]}
    assert (
        found.tokens.count(END) == 3 and found.reward == 1.0
    )  # of two answers and one message: what it says of ends is text


def test_a_class_of_the_user_may_return_text_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Echo:\n"
        "    def __init__(self, row, messages, often=1):\n"
        "        self.left = often\n"
        "    def step(self, action):\n"
        "        self.left -= 1\n"
        "        return action.text + '?' if self.left >= 0 else None\n"
    )
    episode = PythonEnvironment(environment=f"{tmp_path / 'mine.py'}:Echo", options={"often": 2}).build()({}, [])
    said = [episode.step(Action(text)).messages for text in "abc"]
    assert said == [[{"role": "user", "content": "a?"}], [{"role": "user", "content": "b?"}], []]


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


CALLED = '<think>\nHm.\n</think>\n\nLet me see.\n<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>'


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("calculator", '{"expression": "2 * (3 + 4)"}', "14"),
        ("calculator", '{"expression": "9 ** 9"}', "error: ValueError: only numbers"),
        ("calculator", '{"expression": "1 / 0"}', "error: ZeroDivisionError"),
        ("calculator", '{"other": "1"}', "error: TypeError"),
        ("nothing", "{}", "error: there is no tool `nothing`; there are: calculator"),
    ],
)
def test_functions_are_called_and_what_they_say_is_shown(name: str, arguments: str, told: str) -> None:
    tools = ToolsEnvironment(functions=["gym_rl.environments.calculator:calculator"], max_turns=3)
    play, written = MultiTurn(tools, tools.build(), TOKENIZER), list[str]()
    texts = [CALLED.replace("NAME", name).replace("ARGUMENTS", arguments), "It is so."]

    def generate(request: RolloutRequest, names: Sequence[str]) -> list[Completion]:
        written.append(TOKENIZER.decode(request.prompts[0]))
        tokens = [*TOKENIZER.encode(texts[len(written) - 1]), END]
        return [Completion(tokens, [0.0] * len(tokens), True)]

    prompt = replace(questions(1)[0], tools=tools.tools())
    (found,) = play([prompt], RolloutRequest([prompt.tokens.tolist()], 500), generate)
    assert found.text == "It is so." and found.reward == 0 and found.completion.finished
    assert [turn["role"] for turn in found.turns] == ["assistant", "tool", "assistant"]
    assert found.turns[1]["content"].startswith(told) and found.turns[1]["content"] in written[1]


def test_prompts_offer_the_tools_of_an_environment_where_rows_offer_none(bench: Bench) -> None:
    functions = ["gym_rl.environments.calculator:calculator"]
    own = [{"type": "function", "function": {"name": "mine", "parameters": {"type": "object", "properties": {}}}}]
    rows: list[dict[str, Any]] = [{"prompt": "What is 2 + 2?"}, {"prompt": "And 3 + 3?", "tools": own}]
    options = {"environment": {"name": "tools", "functions": functions}, "rewards": ["environment"]}
    recipe = load_recipe(bench.recipe({"name": "rloo", **options}) | {"model": "tiny", "data": str(bench.file(rows))})
    assert isinstance(recipe.algorithm, PolicyGradient) and recipe.data is not None
    shown = recipe.data.build(tokenizer=MODEL, rows="prompt", seed=0, tools=recipe.algorithm.tools()).train
    texts = [TOKENIZER.decode(each.tokens) for each in shown]
    assert ["calculator" in text for text in texts] == [True, False] and "mine" in texts[1]
    assert "such as 2 * (3 + 4.5)" in texts[0]
    without = recipe.data.build(tokenizer=MODEL, rows="prompt", seed=0).train
    assert "calculator" not in TOKENIZER.decode(without[0].tokens), "kept under another name"
    previewed = recipe.data.preview(recipe, 2)
    assert "calculator" in json.dumps(previewed["examples"][0])


def test_a_function_that_cannot_be_described_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def bare(x):\n    return x\n")
    tools = ToolsEnvironment(functions=[f"{tmp_path / 'mine.py'}:bare"])
    with pytest.raises(GymError, match="`bare` cannot be described") as caught:
        tools.tools()
    assert len(str(caught.value).splitlines()) <= 4


def test_a_model_may_run_programs_in_a_sandbox() -> None:
    tools = ToolsEnvironment(functions=["gym_rl.environments.python_interpreter:python"])
    (described,) = tools.tools()
    assert described["function"]["parameters"]["required"] == ["code"]
    episode = tools.build()({}, [])
    codes = ["x = 6\nx * 7", "open('/etc/passwd').read()", "1 / 0"]
    said = [episode.step(Action("", calls=[Call("python", json.dumps({"code": code}))])).messages[0] for code in codes]
    assert said[0]["content"] == "42" and "root:" not in said[1]["content"] and "error" in said[1]["content"]
    assert "ZeroDivisionError" in said[2]["content"]


@pytest.mark.parametrize("parameter", ["*items: str", "**items: str", "items: str, /"])
def test_a_function_that_cannot_be_called_by_name_is_named(tmp_path: Path, parameter: str) -> None:
    text = f'def odd({parameter}):\n    """Do.\n\n    Args:\n        items: Things.\n    """\n'
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(GymError, match="called with arguments by name"):
        ToolsEnvironment(functions=[f"{tmp_path / 'mine.py'}:odd"]).tools()


SHOP = """
import decimal, sys

async def price(item: str, *, count: int = 1):
    \"\"\"Say what something costs.

    Args:
        item: Its name.
        count: How many.
    \"\"\"
    return {"item": item, "total": decimal.Decimal("0.50") * count}

def leave(code: int = 3):
    \"\"\"Leave.

    Args:
        code: Why.
    \"\"\"
    sys.exit(code)

def long():
    \"\"\"Say much.\"\"\"
    return "abcdefghij"
"""


@pytest.mark.parametrize(
    ("name", "arguments", "side", "said"),
    [
        ("price", '{"item": "pear", "count": 2}', "left", '{"item": "pear", "total": "1.00"}'),
        ("leave", "{}", "left", "error: SystemExit: 3"),
        ("long", "{}", "left", "abcde...(truncated)..."),
        ("long", "{}", "middle", "abc...(truncated)...ij"),
        ("long", "{}", "right", "...(truncated)...fghij"),
    ],
)
def test_functions_of_all_sorts_are_called(tmp_path: Path, name: str, arguments: str, side: Any, said: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    functions = [f"{tmp_path / 'shop.py'}:{each}" for each in ("price", "leave", "long")]
    most = 5 if name == "long" else 80
    tools = ToolsEnvironment(functions=functions, max_tool_response_length=most, tool_response_truncate_side=side)
    assert [each["function"]["name"] for each in tools.tools()] == ["price", "leave", "long"]
    result = tools.build()({}, []).step(Action("", calls=[Call(name, arguments)]))
    assert result.messages == [{"role": "tool", "name": name, "content": said}]


@pytest.mark.parametrize(
    ("where", "key", "ours"),
    [
        ("algorithm", "tools", "environment"),
        ("algorithm", "environment_factory", "environment"),
        ("algorithm", "max_tool_calling_iterations", "environment"),
        ("algorithm", "multi_turn", "environment"),
        ("environment", "max_assistant_turns", "max_turns"),
        ("environment", "max_tool_calling_iterations", "max_turns"),
        ("environment", "tool_config_path", "functions"),
    ],
)
def test_a_key_of_trl_or_verl_is_answered_with_ours(bench: Bench, where: str, key: str, ours: str) -> None:
    tools = {"name": "tools", "functions": ["gym_rl.environments.calculator:calculator"]}
    options = {"environment": tools | ({key: 3} if where == "environment" else {}), "rewards": ["environment"]}
    algorithm = {"name": "grpo", **options} | ({key: 3} if where == "algorithm" else {})
    with pytest.raises(RecipeError, match=f"{where}.{key}: unknown key\n  -> did you mean `{ours}`"):
        load_recipe(bench.recipe(algorithm, "prompt"))
