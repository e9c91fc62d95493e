"""Functions that the model calls: what prompts offer, how they are called, and what the model is shown of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gym_turns_bench import END, TOKENIZER, questions

from gym_core import DataError, GymError, RecipeError, load_recipe
from gym_data.tokenizer import Tokenizer
from gym_rewards import RewardInput, sandbox
from gym_rl import Action, Environment, PolicyGradient
from gym_rl.environment import CALLS, FAILED_CALLS, Call
from gym_rl.environments.config import ToolsEnvironment
from gym_rl.rollout_engine import RolloutRequest
from gym_rl.rollouts.multi_turn import MultiTurn
from gym_testkit.bench import Bench
from gym_tiny.family import MODEL
from gym_torch.generation.row import Completion

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
    function = {"name": name, "arguments": json.loads(arguments)}
    assert found.turns[0]["tool_calls"] == [{"type": "function", "function": function}]
    assert "tool_calls" not in found.turns[2] and found.turns[0]["content"].startswith("<think>")
    asked = RewardInput(found.text, messages=prompt.messages, turns=found.turns)
    assert not any("tool_calls" in message for message in asked.context), "once in the text and once beside it"
    assert found.metrics == {CALLS: 1, FAILED_CALLS: told.startswith("error")}
    assert found.turns[1]["content"].startswith(told) and found.turns[1]["content"] in written[1]


@pytest.mark.parametrize("begun", [True, False])
def test_calls_are_read_where_a_row_says_that_no_thought_is_begun(begun: bool) -> None:
    """The column `chat_template_kwargs` may have `enable_thinking`; a call in a thought is none, and one behind it is one."""
    end = "{{- '<|im_start|>assistant\\n' }}\n{%- endif %}"
    thought = "{{- '<|im_start|>assistant\\n<think>\\n' + closed|default('') }}\n{%- endif %}"
    tokenizer = Tokenizer(MODEL, TOKENIZER.templates["default"].replace(end, thought))
    tools = ToolsEnvironment(functions=["gym_rl.environments.calculator:calculator"], max_turns=2)
    values = {} if begun else {"closed": "\n</think>\n\n"}
    text = tokenizer.render([{"role": "user", "content": "6 * 7?"}], True, values=values)
    prompt = replace(questions(1)[0], tools=tools.tools(), tokens=np.array(tokenizer.encode(text)), values=values)
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6"}}\n</tool_call>'
    first, second = call, call.replace("6", "7")
    said = [*tokenizer.encode(f"{first}\n</think>\n\n{second}" if begun else second), END]

    def generate(request: RolloutRequest, names: Sequence[str]) -> list[Completion]:
        return [Completion([*said], [0.0] * len(said), True)]

    (found,) = MultiTurn(tools, tools.build(), tokenizer)([prompt], RolloutRequest([prompt.tokens], 500), generate)
    assert [turn["content"] for turn in found.turns if turn["role"] == "tool"] == ["7"]


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


def test_a_function_without_a_signature_is_named() -> None:
    with pytest.raises(GymError, match="the tool `max` cannot be described: no signature"):
        ToolsEnvironment(functions=["builtins:max"]).tools()


def test_a_function_that_cannot_be_described_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def bare(x):\n    return x\n")
    tools = ToolsEnvironment(functions=[f"{tmp_path / 'mine.py'}:bare"])
    with pytest.raises(GymError, match="`bare` cannot be described") as caught:
        tools.tools()
    assert len(str(caught.value).splitlines()) <= 4


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


COUNTER = """
class Counter:
    reward = 0.0

    def reset(self, answer, **row):
        self.wanted, self.now = int(answer), 0

    def increment(self, step: int) -> int:
        \"\"\"Count on.

        Args:
            step: By how much.
        \"\"\"
        self.now += step
        self.reward = float(self.now == self.wanted)
        return self.now

    def _hidden(self):
        pass

class Asked(Counter, dict):
    reward = None

    async def get_reward(self) -> float:
        \"\"\"Say how far the number is the one that is wanted.\"\"\"
        return self.now == self.wanted
"""


@pytest.mark.parametrize("name", ["Counter", "Asked"])
def test_methods_of_a_class_are_tools_of_an_object_for_each_episode(tmp_path: Path, name: str) -> None:
    """As `environment_factory` has them in TRL, where `reward` is for functions of rewards, and `get_reward` is one."""
    (tmp_path / "counter.py").write_text(COUNTER)
    tools = ToolsEnvironment(functions=[f"{tmp_path / 'counter.py'}:{name}"])
    (offered,) = tools.tools()
    assert offered["function"]["name"] == "increment" and list(offered["function"]["parameters"]["properties"]) == [
        "step"
    ]
    begin = tools.build()
    one, other = begin({"answer": "3", "more": 1}, []), begin({"answer": "1"}, [])
    by = [Action("", calls=[Call("increment", json.dumps({"step": step}))]) for step in (1, 2)]
    told = [one.step(by[0]), other.step(by[0]), one.step(by[1]), other.step(by[1]), one.step(Action("Done."))]
    assert [each.reward for each in told] == [0.0, 1.0, 1.0, -1.0, 0.0], "what is summed is the reward at the end"
    assert [message["content"] for each in told for message in each.messages] == ["1", "1", "3", "3"]


def test_what_a_reset_says_is_not_lost_in_silence(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("class Loud:\n    def reset(self):\n        return 'You are in a maze.'\n")
    begin = ToolsEnvironment(functions=[f"{tmp_path / 'loud.py'}:Loud"]).build()
    with pytest.raises(GymError, match="which no prompt shows"):
        begin({"answer": "1"}, [])


def test_tools_are_refused_where_no_call_of_them_could_be_read() -> None:
    """A turn without a call is the answer: nothing would ever be called, in silence."""
    bare = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    tools = ToolsEnvironment(functions=["gym_rl.environments.calculator:calculator"])
    with pytest.raises(DataError, match="no tool calls") as caught:
        MultiTurn(tools, tools.build(), Tokenizer(MODEL, bare))
    assert caught.value.problems[0].key == "data.template"
    assert MultiTurn(Environment(), tools.build(), Tokenizer(MODEL, bare))


def test_a_model_may_run_programs_in_a_sandbox() -> None:
    tools = ToolsEnvironment(functions=["gym_rl.environments.python_interpreter:python"])
    (described,) = tools.tools()
    assert described["function"]["parameters"]["required"] == ["code"]
    episode = tools.build()({}, [])
    codes = ["x = 6\nx * 7", "open('/etc/passwd').read()", "1 / 0", "def main():\n    print(5)\nmain()"]
    said = [episode.step(Action("", calls=[Call("python", json.dumps({"code": code}))])).messages[0] for code in codes]
    assert said[0]["content"] == "42" and "root:" not in said[1]["content"] and "error" in said[1]["content"]
    assert "ZeroDivisionError" in said[2]["content"] and said[3]["content"] == "5", "None is nothing to be shown"


def test_which_part_of_a_long_output_is_shown_is_for_the_options_to_say() -> None:
    """As the end, where the result stands."""
    reference = "gym_rl.environments.python_interpreter:python"
    tools = ToolsEnvironment(functions=[reference], max_tool_response_length=9000, tool_response_truncate_side="right")
    called = Action("", calls=[Call("python", json.dumps({"code": "print('a' * 9000)\n42"}))])
    (message,) = tools.build()({}, []).step(called).messages
    assert message["content"] == "...(truncated)..." + "a" * 8997 + "\n42"


def test_a_machine_without_a_sandbox_is_not_an_answer_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program would be told the same, and the run would go on."""

    def refuse(name: str) -> Any:
        raise GymError("programs cannot be confined by namespaces here")

    monkeypatch.setattr(sandbox, "level", refuse)
    episode = ToolsEnvironment(functions=["gym_rl.environments.python_interpreter:python"]).build()({}, [])
    with pytest.raises(GymError, match="cannot be confined"):
        episode.step(Action("", calls=[Call("python", '{"code": "1"}')]))
