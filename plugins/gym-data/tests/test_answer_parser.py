"""What a model writes, read by the marks of its template: however the text is cut, the parts are the same."""

from __future__ import annotations

import json
import random
import re

import pytest

from gym_data.chat.answer_format import AnswerFormat
from gym_data.chat.answer_parser import AnswerParser, Delta
from gym_data.chat.channel_parser import parser_of
from gym_data.chat.channels import ChannelCalls
from gym_data.chat.json_calls import CallFormat
from gym_data.chat.named_calls import NamedCalls
from gym_data.chat.tagged_calls import TaggedCalls

TAGGED = AnswerFormat(CallFormat("<tool_call>\n", "\n</tool_call>"), "<think>", "</think>")
PROMPTED = AnswerFormat(None, "<think>", "</think>", begins_thinking=True)
BARE = AnswerFormat(CallFormat("", "", arguments="parameters"))
LISTED = AnswerFormat(CallFormat("[TOOL_CALLS] ", "", listed=True))
CODER = TaggedCalls(
    "<tool_call>\n<function=", ">\n", "<parameter=", ">\n", "\n</parameter>\n", "</function>\n</tool_call>", "", ""
)
XML = AnswerFormat(CODER, "<think>", "</think>")
PAIRS = AnswerFormat(
    TaggedCalls("<tool_call>", "\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>", "", "")
)
SECTION = AnswerFormat(NamedCalls("<all><one><tool>", "<sep>", "</one>", "<one><tool>", "</all>"))
CHANNELS = AnswerFormat(ChannelCalls(), channels=True)
WHOLE = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "sure": {"type": "boolean"},
        "list": {"type": "array"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }
}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": WHOLE}},
    {"type": "function", "function": {"name": "g", "parameters": {"properties": [], "required": 3}}},
]
GIVEN = {
    "text": "7\n<b>\n</parameter>",
    "count": 7,
    "sure": True,
    "list": [{"a": "x"}],
    "maybe": None,
    "new": "un said",
}
WRITTEN = {
    "text": GIVEN["text"],
    "count": "7",
    "sure": "True",
    "list": '[{"a":\n"x"}]',
    "maybe": "null",
    "new": "un said",
}
XML_CALL = (
    "<tool_call>\n<function=f>\n"
    + "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in WRITTEN.items())
    + "</function>\n</tool_call>"
)
XML_EMPTY = "<tool_call>\n<function=g>\n</function>\n</tool_call>"
PAIR_CALL = (
    "<tool_call>f\n"
    + "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in WRITTEN.items())
    + "</tool_call>"
)
ANALYSIS = "<|channel|>analysis<|message|>hm, so<|end|><|start|>assistant"
COMMENTARY = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "}<\\n"}'
A, B = {"name": "f", "arguments": {"a": "}<\n"}}, {"name": "g", "arguments": {}}
ONE, TWO = (f"<tool_call>\n{json.dumps(each)}\n</tool_call>" for each in (A, B))
MARKS = re.compile("<think>|</think>|<.channel.>analysis<.message.>|<.end.>")
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
    "space that nothing follows": (PROMPTED, "hm\n\n", "", "hm", []),
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
    "tags": (XML, f"<think>\nhm\n</think>\n\nlook:\n{XML_CALL}\n{XML_EMPTY}", "look:", "hm", [("f", GIVEN), ("g", {})]),
    "tags without the last": (XML, XML_EMPTY.removesuffix("\n</tool_call>"), "", "", CALLED[1:]),
    "tags without an end": (XML, XML_CALL[:-30], XML_CALL[:-30], "", []),
    "a tag that is none": (XML, "<tool_call>\nno, words", "<tool_call>\nno, words", "", []),
    "keys and values": (PAIRS, f"{PAIR_CALL}\n<tool_call>g</tool_call>", "", "", [("f", GIVEN), ("g", {})]),
    "a section of calls": (
        SECTION,
        f"so <all><one><tool>f<sep>{json.dumps(A['arguments'])}</one>\n<one><tool>g<sep>{{}}</one></all> end",
        "soend",
        "",
        CALLED,
    ),
    "a name without arguments": (SECTION, "<all><one><tool>f<sep>no", "<all><one><tool>f<sep>no", "", []),
    "channels": (CHANNELS, f"{ANALYSIS}<|channel|>final<|message|>a < b<|return|>", "a < b", "hm, so", []),
    "a call in channels": (CHANNELS, f"{ANALYSIS}{COMMENTARY}<|call|>", "", "hm, so", CALLED[:1]),
    "a call in channels that nothing ends": (CHANNELS, ANALYSIS + COMMENTARY, "", "hm, so", CALLED[:1]),
    "the recipient first": (
        CHANNELS,
        " to=functions.g<|channel|>commentary json<|message|>{}<|call|>",
        "",
        "",
        CALLED[1:],
    ),
    "words and a call in channels": (
        CHANNELS,
        f"<|channel|>commentary<|message|>look<|end|><|start|>assistant{COMMENTARY}<|call|>",
        "look",
        "",
        CALLED[:1],
    ),
    "no header": (CHANNELS, "going on <|ever", "going on <|ever", "", []),
    "a header without an end": (CHANNELS, "<|channel|>final", "<|channel|>final", "", []),
    "a call of no object": (CHANNELS, COMMENTARY[:-1], COMMENTARY[:-1], "", []),
    "a list": (LISTED, "[TOOL_CALLS] " + json.dumps([A, B]), "", "", CALLED),
}


@pytest.mark.parametrize("case", CASES)
def test_the_parts_are_the_same_however_the_text_is_cut(case):
    format, text, content, reasoning, calls = CASES[case]
    draw = random.Random(case)
    for _ in range(60):
        cuts = sorted(draw.sample(range(len(text) + 1), draw.randint(0, min(9, len(text)))))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        parser, found = parser_of(format, TOOLS), Delta()
        for piece in pieces:
            found += parser.feed(piece)
        found += parser.feed("", end=True)
        assert (found.content, found.reasoning) == (content, reasoning)
        assert [(call.name, json.loads(call.arguments)) for call in found.calls] == calls
        assert len({call.id for call in found.calls}) == len(calls)
        thought = "".join(sign for place, sign in enumerate(text) if parser.thought(place))
        assert MARKS.sub("", thought).strip() == reasoning and (
            not reasoning or thought == text or MARKS.search(thought)
        )
        assert parser.thought(len(text)) == (case in ("thought without an end", "space that nothing follows"))


def test_without_tools_marks_of_calls_are_text():
    for format, text in ((TAGGED, ONE), (XML, XML_CALL), (SECTION, "<all><one><tool>g<sep>{}</one></all>")):
        assert parser_of(format, None).feed(text, end=True) == Delta(content=text)
    assert parser_of(CHANNELS, None).feed(COMMENTARY, end=True) == Delta(content=COMMENTARY)


def test_what_is_no_mark_is_not_held_back():
    parser = AnswerParser(TAGGED, TOOLS)
    assert [parser.feed(text).content for text in ("one", " two", " <", " three")] == ["one", " two", "", " < three"]


def test_a_long_call_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it again with each of its tokens would stop a server for seconds."""
    text, read = json.dumps({"name": "f", "arguments": {"rows": [{"a": 1}] * 2000}}), []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda *given, **more: (read.append(given), loads(*given, **more))[1])
    parser, found = AnswerParser(TAGGED, TOOLS), Delta()
    for sign in f"<tool_call>\n{text}\n</tool_call>":
        found += parser.feed(sign)
    monkeypatch.undo()
    assert len(read) == 1 and json.loads(found.calls[0].arguments)["rows"] == [{"a": 1}] * 2000


def test_calls_can_be_sent() -> None:
    found = AnswerParser(TAGGED, TOOLS).feed(HALF.replace('"f"', r'"f\udc00"'), end=True)
    assert found.calls[0].name == "f\ufffd" and found.calls[0].arguments.encode()
