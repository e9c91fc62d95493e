"""What a model writes, read by the marks of its template: however the text is cut, the parts are the same."""

from __future__ import annotations

import json
import random

import pytest

from gym_data.chat.answer_format import AnswerFormat, CallFormat
from gym_serve.answer_parser import AnswerParser, Delta

TAGGED = AnswerFormat(CallFormat("<tool_call>\n", "\n</tool_call>"), "<think>", "</think>")
PROMPTED = AnswerFormat(None, "<think>", "</think>", begins_thinking=True)
BARE = AnswerFormat(CallFormat("", "", arguments="parameters"))
LISTED = AnswerFormat(CallFormat("[TOOL_CALLS] ", "", listed=True))
A, B = {"name": "f", "arguments": {"a": "}<\n"}}, {"name": "g", "arguments": {}}
ONE, TWO = (f"<tool_call>\n{json.dumps(each)}\n</tool_call>" for each in (A, B))
CALLED = [("f", A["arguments"]), ("g", {})]
NAN, LARGE, DEEP, HALF = (
    '<tool_call>\n{"name": "f", "arguments": ' + each + "}\n</tool_call>"
    for each in (
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": ' + "[" * 20_000 + "]" * 20_000 + "}",
        r'{"a": "x\ud83d", "b": "\ud83d\ude42\\"}',
    )
)
CASES = {
    "plain": (TAGGED, "  a <b> c\n", "  a <b> c\n", "", []),
    "thought": (TAGGED, "<think>\nhm, so\n</think>\n\nyes ", "yes ", "hm, so", []),
    "empty thought": (TAGGED, "<think>\n\n</think>\n\nyes", "yes", "", []),
    "thought without an end": (TAGGED, "<think>\nhm, so </th", "", "hm, so </th", []),
    "thought that the prompt begins": (PROMPTED, "\nhm\n</think>\n\nyes", "yes", "hm", []),
    "a mark in the middle": (TAGGED, "a <think> b </think>", "a <think> b </think>", "", []),
    "calls": (TAGGED, f"{ONE}\n{TWO}", "", "", CALLED),
    "words and a call": (TAGGED, f"<think>\nhm\n</think>\n\nlook: \n{ONE}", "look:", "hm", CALLED[:1]),
    "a call that is none": (TAGGED, "<tool_call>\n[1, 2", "<tool_call>\n[1, 2", "", []),
    "a call without a name": (TAGGED, '<tool_call>\n{"a": 1}', '<tool_call>\n{"a": 1}', "", []),
    "a call of numbers that JSON does not have": (TAGGED, NAN, NAN, "", []),
    "a call too large a number": (TAGGED, LARGE, LARGE, "", []),
    "a call nested too deeply": (TAGGED, DEEP, DEEP, "", []),
    "brackets without an end": (TAGGED, DEEP[:9999], DEEP[:9999], "", []),
    "half a character": (TAGGED, HALF, "", "", [("f", {"a": "x\ufffd", "b": "🙂\\"})]),
    "half a mark": (TAGGED, "yes <tool_c", "yes <tool_c", "", []),
    "a bare call": (BARE, '{"name": "g", "parameters": {}}', "", "", CALLED[1:]),
    "bare words": (BARE, 'no {"name": 1}', 'no {"name": 1}', "", []),
    "a list": (LISTED, "[TOOL_CALLS] " + json.dumps([A, B]), "", "", CALLED),
}


@pytest.mark.parametrize("case", CASES)
def test_the_parts_are_the_same_however_the_text_is_cut(case):
    format, text, content, reasoning, calls = CASES[case]
    draw = random.Random(case)
    for _ in range(60):
        cuts = sorted(draw.sample(range(len(text) + 1), draw.randint(0, min(9, len(text)))))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        parser, found = AnswerParser(format, calls=True), Delta()
        for piece in pieces:
            found += parser.feed(piece)
        found += parser.feed("", end=True)
        assert (found.content, found.reasoning) == (content, reasoning)
        assert [(call.name, json.loads(call.arguments)) for call in found.calls] == calls
        assert len({call.id for call in found.calls}) == len(calls)


def test_without_tools_marks_of_calls_are_text():
    found = AnswerParser(TAGGED, calls=False).feed(ONE, end=True)
    assert found == Delta(content=ONE)


def test_what_is_no_mark_is_not_held_back():
    parser = AnswerParser(TAGGED, calls=True)
    assert [parser.feed(text).content for text in ("one", " two", " <", " three")] == ["one", " two", "", " < three"]


def test_a_long_call_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it again with each of its tokens would stop a server for seconds."""
    text, read = json.dumps({"name": "f", "arguments": {"rows": [{"a": 1}] * 2000}}), []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda *given, **more: (read.append(given), loads(*given, **more))[1])
    parser, found = AnswerParser(TAGGED, calls=True), Delta()
    for sign in f"<tool_call>\n{text}\n</tool_call>":
        found += parser.feed(sign)
    monkeypatch.undo()
    assert len(read) == 1 and json.loads(found.calls[0].arguments)["rows"] == [{"a": 1}] * 2000


def test_calls_can_be_sent() -> None:
    found = AnswerParser(TAGGED, calls=True).feed(HALF.replace('"f"', r'"f\udc00"'), end=True)
    assert found.calls[0].name == "f\ufffd" and found.calls[0].arguments.encode()
