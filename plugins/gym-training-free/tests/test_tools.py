"""Tools in the loop of an answer: what they compute, what they refuse, and how the model hears of it."""

from __future__ import annotations

import json
import sys
import time

import pytest
from scripted_server import ScriptedServer

from gym_training_free import GRPOConfig, TrainingFreeGRPO
from gym_training_free.endpoint.reply import ToolCall
from gym_training_free.tools import use

BOTH = ("calculator", "python")
needs_sandbox = pytest.mark.skipif(sys.platform != "linux", reason="programs are confined by the kernel of Linux")


def called(name, **arguments):
    return ToolCall("c1", name, json.dumps(arguments))


@needs_sandbox
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (called("calculator", expression="2 ** 10 + sqrt(16)"), "1028.0"),
        (called("calculator", expression="Fraction(1, 3) + 1"), "4/3"),
        (called("calculator", expression="__import__('os').getpid()"), "NameError"),
        (called("calculator", expression="1; 2"), "is no expression"),
        (called("python", code="x = [n * n for n in range(4)]\nsum(x)"), "14"),
        (called("python", code="print('a')"), "a"),
        (called("python", code="s = 'ä'\n(len(s),\n 2) ; # ö"), "(1, 2)"),
        (called("python", code="import socket\nsocket.create_connection(('127.0.0.1', 9))"), "Error"),
        (called("python", code="1 / 0"), "ZeroDivisionError"),
        (called("python", source="1"), "it needs the argument `code`"),
        (ToolCall("c1", "python", "{oops"), "error: "),
        (called("shell", command="ls"), "there is no tool `shell`"),
        (ToolCall("c1", "calculator", "[" * 100_000), "error: "),
        (called("python", code="1" + " + 1" * 900), "901"),
        (called("calculator", expression="1" + " + 1" * 900), "901"),
        (called("python", code="print('\ud800')"), "surrogates not allowed"),
    ],
)
def test_tools_answer_and_never_raise(call, said):
    assert said in use(call, BOTH, 5.0)


@needs_sandbox
def test_a_tool_that_takes_too_long_is_ended():
    began = time.monotonic()
    assert "ended after 0.3 s" in use(called("python", code="while True: pass"), BOTH, 0.3)
    assert time.monotonic() - began < 5


@needs_sandbox
def test_the_model_hears_what_a_tool_says_and_a_resumed_run_does_not_call_it_again(tmp_path, monkeypatch):
    call = {"id": "c9", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "6 * 7"}'}}

    def answer(request):
        last = request["messages"][-1]
        return f"It is {last['content']}." if last["role"] == "tool" else {"content": "Wait.", "tool_calls": [call]}

    with ScriptedServer(answer) as server:
        config = GRPOConfig(group_size=1, max_epochs=1, held_out=0, tools=["calculator"], max_turns=3)
        one = TrainingFreeGRPO("m", config, server.base_url, output=tmp_path)
        heard = []

        def reward(said, row):
            heard.append(said)
            return 1.0

        one.train(["What is 6 * 7?"], reward)
        assert heard == ["It is 42."]
        first, second = server.requests
        assert [tool["function"]["name"] for tool in first["tools"]] == ["calculator"]
        assert second["messages"][-2]["tool_calls"] == [call] and second["messages"][-1]["tool_call_id"] == "c9"
        monkeypatch.setattr("gym_training_free.tools.use", lambda *told: pytest.fail("called again"))
        one.train(["What is 6 * 7?"], reward)
        assert len(server.requests) == 2


def test_a_model_that_only_calls_tools_must_answer_at_last(monkeypatch):
    monkeypatch.setattr("gym_training_free.tools.use", lambda *told: "nothing")
    monkeypatch.setattr("gym_rewards.sandbox.level", lambda name: None)
    call = {"id": "c", "type": "function", "function": {"name": "python", "arguments": "{}"}}
    with ScriptedServer(lambda request: {"content": "again", "tool_calls": [call]}) as server:
        config = GRPOConfig(group_size=1, max_epochs=1, held_out=0, tools=["python"], max_turns=3)
        TrainingFreeGRPO("m", config, server.base_url).train(["?"], lambda said, row: 1.0)
        assert ["tools" in request for request in server.requests] == [True, True, False]


@needs_sandbox
def test_one_reply_calls_so_many_tools_and_no_more():
    call = {"type": "function", "function": {"name": "shell", "arguments": "{}"}}
    many = {"content": "", "tool_calls": [{"id": f"c{n}", **call} for n in range(40)]}
    with ScriptedServer(lambda request: "5" if request["messages"][-1]["role"] == "tool" else many) as server:
        config = GRPOConfig(group_size=1, max_epochs=1, held_out=0, tools=["calculator"])
        TrainingFreeGRPO("m", config, server.base_url).train(["?"], lambda said, row: 1.0)
    said = [one["content"] for one in server.requests[1]["messages"] if one["role"] == "tool"]
    assert ["no tool" in one for one in said] == [True] * 16 + [False] * 24 and "16 calls" in said[-1]
