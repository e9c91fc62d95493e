"""Rewards of text and structure against results computed by hand."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.util import find_spec

import pytest
from pydantic import ValidationError

from gym_core.errors import GymError, PluginError
from gym_rewards import Exact, Format, JsonText, Length, Overlong, PythonFunction, Regex, RewardInput, ToolCall


def scores(reward, *texts, row=None, **known):
    return reward.build()([RewardInput(text, row or {}, **known) for text in texts])


def test_exact():
    row = {"answer": "New York"}
    assert scores(Exact(), "new  york\n", "New York", "NEW\u00a0YORK", "York", "", "New York.", row=row) == [
        1,
        1,
        1,
        0,
        0,
        0,
    ]
    assert scores(Exact(case=True), "new york", "New York", row=row) == [0, 1]
    assert scores(Exact(punctuation=False), "New-York!", "NewYork", row=row) == [1, 0]
    assert scores(Exact(), "b", "c", row={"answer": ["a", "B"]}) == [1, 0]
    assert scores(Exact(), "42", row={"answer": 42}) == [1]
    tagged = (
        "<answer>no</answer> <answer> New York</answer>",
        "New York",
        "<answer>New York",
        "</answer>New York<answer>",
    )
    assert scores(Exact(section="answer"), *tagged, row=row) == [1, 0, 0, 0]
    with pytest.raises(ValueError, match="column `answer` is missing; there are question"):
        scores(Exact(), "x", row={"question": "?"})


def test_regex():
    assert scores(Regex(pattern=r"\d+"), "a 1", "a", "", "٣") == [1, 0, 0, 1]
    assert scores(Regex(pattern=r"\d+", full=True), "12", "12 ") == [1, 0]
    assert scores(Regex(pattern="yes", ignore_case=True), "YES", "no") == [1, 0]
    with pytest.raises(ValidationError, match="no regular expression"):
        Regex(pattern="(")


def test_a_pattern_that_backtracks_forever_costs_its_time_and_earns_nothing():
    score = Regex(pattern=r"(a+)+$", timeout=0.3).build()
    assert score([RewardInput("aaa")]) == [1]
    began = time.monotonic()
    assert score([RewardInput("a" * 40 + "!"), RewardInput("aaa")]) == [0, 1]
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>a</think><answer>b</answer>", 1),
        ("\n<think>\na < b\n</think>\n\n<answer>b</answer>\n", 1),
        ("<answer>b</answer><think>a</think>", 0),
        ("<think>a</think> and <answer>b</answer>", 0),
        ("<think>a</think><answer>b</answer> more", 0),
        ("x <think>a</think><answer>b</answer>", 0),
        ("<think>a</think><think>a</think><answer>b</answer>", 0),
        ("<think>a<answer>b</answer></think>", 0),
        ("<think> </think><answer>b</answer>", 0),
        ("<think>a</think><answer>b", 0),
        ("</think>a<think><answer>b</answer>", 0),
        ("<Think>a</Think><answer>b</answer>", 0),
        ("", 0),
        ("<think>" * 50_000, 0),
    ],
    ids=range(14),
)
def test_format(text, value):
    assert scores(Format(), text) == [value]


def test_format_with_text_after_the_sections_and_with_a_section_that_the_prompt_opened():
    reward = Format(sections=("think",), rest=True, opened=True)
    assert scores(reward, "a</think>b", "a</think>", "<think>a</think>b", "b") == [1, 0, 0, 0]
    with pytest.raises(ValidationError):
        Format(sections=())


def test_length():
    reward = Length(minimum=10, maximum=20, slack=5)
    assert [
        reward.build()([RewardInput("", tokens=n)])[0] for n in (0, 5, 7, 10, 15, 20, 21, 25, 10**9)
    ] == pytest.approx([0, 0, 0.4, 1, 1, 1, 0.8, 0, 0])
    with pytest.raises(ValidationError, match="larger"):
        Length(minimum=30, maximum=20)


def test_overlong_is_equation_13():
    def equation(length, most, cache):
        if length <= most - cache:
            return 0.0
        return ((most - cache) - length) / cache if length <= most else -1.0

    lengths = (0, 1, 15, 16, 17, 18, 19, 20, 21, 1000)
    found = Overlong(maximum=20, buffer=4).build()([RewardInput("", tokens=n) for n in lengths])
    assert found == [equation(n, 20, 4) for n in lengths] == [0, 0, 0, 0, -0.25, -0.5, -0.75, -1, -1, -1]
    assert Overlong().build()([RewardInput("", tokens=16_384 + 1024)]) == [-0.25]
    with pytest.raises(ValidationError, match="larger"):
        Overlong(maximum=3, buffer=4)


def test_json():
    good = ['{"a": 1}', "[]", "3", '"x"', "null", '```json\n{"a": 1}\n```', "```\n[1]\n```", " {}\n"]
    bad = [
        "",
        "{a: 1}",
        "{'a': 1}",
        '{"a": 1} ok',
        "NaN",
        "[Infinity]",
        "[" * 100_000,
        "```json\n{\n```",
        "\u0661",
        "9" * 10_000,
        "\ud800",
    ]
    assert scores(JsonText(), *good) == [1] * len(good)
    assert scores(JsonText(), *bad) == [0] * len(bad)


SCHEMA = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["age"]}


def test_json_of_a_schema():
    pytest.importorskip("jsonschema")
    texts = ('{"age": 3}', '{"age": -3}', '{"age": "3"}', "{}", "3", "")
    assert scores(JsonText(json_schema=SCHEMA), *texts) == [1, 0, 0, 0, 0, 0]
    for row in ({"shape": SCHEMA}, {"shape": '{"type": "object", "required": ["age"]}'}):
        assert scores(JsonText(column="shape"), '{"age": 3}', "{}", row=row) == [1, 0]
    with pytest.raises(ValueError, match="the schema is none"):
        JsonText(json_schema={"type": "no such"}).build()
    with pytest.raises(ValueError, match="column `shape` is missing"):
        scores(JsonText(column="shape"), "{}")
    with pytest.raises(ValidationError, match="exclude"):
        JsonText(json_schema=SCHEMA, column="shape")


def test_a_schema_fetches_nothing():
    pytest.importorskip("jsonschema")
    with pytest.raises(Exception, match=r"(?i)unresolvable|retrieval"):
        scores(JsonText(json_schema={"$ref": "http://127.0.0.1:9/schema"}), "{}")


@pytest.mark.skipif(find_spec("jsonschema") is not None, reason="jsonschema is installed")
def test_a_schema_is_refused_where_jsonschema_is_absent():
    with pytest.raises(PluginError, match=r"gym-rewards\[json\]"):
        JsonText(json_schema=SCHEMA).build()


def call(name, **arguments):
    return {"name": name, "arguments": arguments}


def block(text):
    return f"<tool_call>\n{text}\n</tool_call>"


WEATHER, TIME = '{"name": "weather", "arguments": {"city": "Rome", "days": 2}}', '{"name": "time", "arguments": {}}'
ROW = {"tool_calls": [call("weather", city="Rome", days=2), call("time")]}


@pytest.mark.parametrize(
    ("text", "whole", "part"),
    [
        (block(WEATHER) + block(TIME), 1, 1),
        ("Let me see. " + block(TIME) + "\n" + block(WEATHER), 1, 1),  # order is free
        (f"[{WEATHER}, {TIME}]", 1, 1),
        (block(WEATHER), 0, 1 / 2),
        (block(WEATHER) * 2, 0, 1 / 2),  # a call counts once
        (block(WEATHER) + block(TIME) + block(TIME), 0, 2 / 3),
        (block(WEATHER.replace("Rome", "Paris")) + block(TIME), 0, (0.75 + 1) / 2),
        (block(WEATHER.replace("2", '"2"')) + block(TIME), 0, (0.75 + 1) / 2),
        (block(WEATHER.replace("2", "2.0")) + block(TIME), 1, 1),
        (block(WEATHER.replace("2", "true")) + block(TIME), 0, (0.75 + 1) / 2),
        (block(WEATHER.replace("}}", ', "extra": 1}}')) + block(TIME), 0, (0.5 + 0.5 * 2 / 3 + 1) / 2),
        (block('{"name": "other", "arguments": {}}'), 0, 0),
        (block("{broken") + block(WEATHER), 0, 0),
        (block(WEATHER) + "<tool_call>" + TIME, 0, 0),
        ("<tool_call>" * 50_000, 0, 0),
        ("[" * 900 + "]" * 900, 0, 0),
        (block("[" * 900 + "]" * 900), 0, 0),
        (block("[" * 50_000), 0, 0),
        (block('{"name": ["weather"]}'), 0, 0),
        ("I will call weather.", 0, 0),
        ("", 0, 0),
    ],
    ids=range(21),
)
def test_tool_calls(text, whole, part):
    assert scores(ToolCall(), text, row=ROW) == [whole]
    assert scores(ToolCall(partial=True), text, row=ROW) == pytest.approx([part])


def test_expected_calls_in_every_form():
    openai = {"id": "1", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    for value in (call("time"), [call("time")], [openai], TIME, f"[{TIME}]", block(TIME), {"name": "time"}):
        assert scores(ToolCall(calls="want"), block(TIME), "no", row={"want": value}) == [1, 0]
    assert scores(ToolCall(), "Just talk.", block(TIME), row={"tool_calls": []}) == [1, 0]
    for row in ({}, {"tool_calls": "talk"}, {"tool_calls": [3]}, {"tool_calls": [{"arguments": {}}]}):
        with pytest.raises(ValueError):
            scores(ToolCall(), block(TIME), row=row)


def test_calls_of_all_turns_count():
    said = [("assistant", f"Hm. {block(TIME)}"), ("tool", block(TIME)), ("assistant", "It is noon.")]
    item = RewardInput(
        "It is noon.", {"tool_calls": [TIME]}, turns=[{"role": role, "content": text} for role, text in said]
    )
    assert ToolCall().build()([item, replace(item, turns=())]) == [1, 0]
    lasts = {'{"hour": 12}': 1, "[12]": 1, "{": 1, TIME: 0, "<tool_call>": 0}  # an answer in JSON is no call
    several = [
        replace(item, text=last, turns=[*item.turns[:-1], {"role": "assistant", "content": last}]) for last in lasts
    ]
    assert ToolCall().build()(several) == list(lasts.values())


def test_the_calls_of_the_tiny_model_are_understood():
    tools = pytest.importorskip("gym_tiny.tasks.tools")
    from random import Random

    tasks = [tools.make(Random(seed)) for seed in range(20)]
    for task in tasks:
        assert scores(ToolCall(), task.answer, task.wrong, row={"tool_calls": task.answer}) == [1, 0]


FUNCTIONS = '''
"""Functions as users write them."""
import re
from typing import Any

def trl(completions, answer, **kwargs):
    """As in TRL's documentation, for plain prompts."""
    return [1.0 if a in c else 0.0 for c, a in zip(completions, answer)]

def trl_chat(prompts, completions, **kwargs) -> list[float]:
    """As in TRL's documentation, for conversations."""
    return [len(p) + float(c[0]["content"] == "4") for p, c in zip(prompts, completions)]

def several(texts, tokens, finished, ids, messages, scale=1):
    return [scale * t * f for t, f in zip(tokens, finished)]

def whole(inputs, /):
    return [None if not one.text else len(one.text) for one in inputs]

def everything(**columns):
    return [sorted(columns) == sorted(set(columns)) and "answer" in columns and "prompts" in columns]

def wants(completions, *, missing): return []
def number(completions): return 3
def words(completions): return ["high" for _ in completions]
'''


@pytest.fixture
def function(tmp_path):
    path = tmp_path / "my rewards.py"
    path.write_text(FUNCTIONS)
    return lambda name, **options: PythonFunction(function=f"{path}:{name}", **options)


def test_functions_get_what_they_ask_for(function):
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    answers = [
        RewardInput("4", {"answer": "4"}, prompt, "r1", 1),
        RewardInput("", {"answer": "4"}, prompt, "r2", 9, False),
    ]
    assert function("trl").build()(answers) == [1, 0]
    assert function("trl_chat", conversational=True).build()(answers) == [3, 2]
    assert function("several", options={"scale": 3}).build()(answers) == [3, 0]
    assert function("whole").build()(answers) == [1, None]
    assert function("everything").build()(answers[:1]) == [1]
    assert function("trl").build()([]) == []
    assert PythonFunction(function="gym_rewards.builtin.python_function:ended").build()(answers) == [1, 0]


def test_the_same_function_with_prompts_as_text(tmp_path):
    path = tmp_path / "f.py"
    path.write_text(
        "def f(prompts, completions): return [float(p == 'a\\n\\nb') + (c == 'x') for p, c in zip(prompts, completions)]"
    )
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    assert PythonFunction(function=f"{path}:f").build()([RewardInput("x", messages=messages)]) == [2]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("wants", "wants `missing`"),
        ("number", "returned '3'"),
        ("words", "high"),
        ("nothing", "nothing"),
        ("re", "no function"),
    ],
)
def test_functions_that_do_not_fit_are_explained(function, name, why):
    with pytest.raises(GymError, match=why) as raised:
        function(name).build()([RewardInput("4", {"answer": "4"})])
    assert len(str(raised.value).splitlines()) <= 4


@pytest.mark.parametrize("reference", ["no_such_module:f", "json:no_such", "no_file.py:f", "json"])
def test_a_reference_that_leads_nowhere_is_explained(reference):
    with pytest.raises((GymError, ValidationError), match=r"no|pattern"):
        PythonFunction(function=reference).build()


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("no_such_module:f", "there is no module `no_such_module`"),
        ("gym_rewards.no_such:f", r"there is no module `gym_rewards\.no_such`"),
        ("json:no_such", "json defines no `no_such`"),
        ("no_file.py:f", "no_file.py: No such file"),
    ],
)
def test_a_function_that_is_not_there_is_refused_before_anything_is_loaded(reference, why):
    with pytest.raises(GymError, match=why) as caught:
        PythonFunction(function=reference).check()
    (problem,) = caught.value.problems
    assert problem.key == "algorithm.rewards" and "file.py:function" in problem.fix
    PythonFunction(function="gym_rewards.builtin.python_function:ended").check()
    PythonFunction(function="math:gcd").check()  # it has no source to read it from
