"""Answers that must have a form: where it is a call, the arguments are those of the tool that is called."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from api_server import served
from llguidance import LLMatcher, LLTokenizer
from parrot import FORMAT, Parrot, ParrotEngine

from gym_data.chat.answer_format import AnswerFormat
from gym_data.chat.answer_grammar import json_lark, pattern_lark, spoken, thoughtful
from gym_data.chat.channels import ChannelCalls
from gym_data.chat.named_calls import NamedCalls
from gym_data.chat.tagged_calls import TaggedCalls
from gym_data.location import locate
from gym_serve import Limits, ModelSource, ServedModel


class Obedient(ParrotEngine):
    """Takes any form; what it writes is what it is told to."""

    @property
    def supports(self) -> frozenset[str]:
        return super().supports | {"grammar:json_object", "grammar:json_schema", "grammar:lark"}


class Thinking(Obedient):
    """One whose prompts have begun a thought already."""

    def models(self) -> Sequence[ServedModel]:
        return [replace(model, answers=replace(FORMAT, begins_thinking=True)) for model in super().models()]


class Simple(Thinking):
    """One of those that takes no grammars of Lark."""

    @property
    def supports(self) -> frozenset[str]:
        return super().supports - {"grammar:lark"}


def engine_of(kind: type[ParrotEngine]) -> ParrotEngine:
    return kind(Parrot(), [ModelSource("parrot", "nowhere")], Limits())


def ask(server: Any, path: str, said: str, **body: Any) -> Any:
    whole = {"model": "parrot", "messages": [{"role": "user", "content": said}], **body}
    request = urllib.request.Request(
        server.url + path, json.dumps(whole).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.loads(reply.read())


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}


def allows(grammar: str, name: str, arguments: Any) -> bool:
    """Whether a grammar allows a whole call."""
    words = LLTokenizer((locate("tiny") / "tokenizer.json").read_text(encoding="utf-8"))
    call = json.dumps({"name": name, "arguments": arguments}, separators=(",", ":"))
    parts = ("<tool", f"_call>\n{call}\n</tool", "_call>")  # the parrot knows no tokens for marks
    tokens = [token for part in parts for token in words.tokenize_str(part)]
    matcher = LLMatcher(words, grammar)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.validate_tokens(tokens) == len(tokens))


TOKENS = (("<think>", 2042), ("</think>", 2043))
MARKS = AnswerFormat(None, "<think>", "</think>")
JSON_OF = json_lark({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


@pytest.mark.parametrize("grammar", [JSON_OF, pattern_lark(r"a/b|(x\/y)+"), pattern_lark("a\n( b)?")])
@pytest.mark.parametrize("answer", ['{"a":1}', '{"a":"b"}', "a/b", "x/yx/y", "a\n b", "a\n"])
@pytest.mark.parametrize(
    "form",
    [
        replace(MARKS, tokens=TOKENS),
        replace(MARKS, tokens=TOKENS, begins_thinking=True),
        MARKS,
        replace(MARKS, begins_thinking=True),
        AnswerFormat(ChannelCalls(), channels=True),
    ],
    ids=["tokens", "begun", "texts", "begun-texts", "channels"],
)
def test_a_thought_is_free_and_the_answer_behind_it_is_not(grammar: str, answer: str, form: AnswerFormat) -> None:
    words = LLTokenizer((locate("tiny") / "tokenizer.json").read_text(encoding="utf-8"))

    def taken(grammar: str, text: str) -> bool:
        matcher = LLMatcher(words, grammar)
        assert not matcher.is_error(), matcher.get_error()
        parts = [text] if form.tokens else re.split(r"(?<=[<|])", text)  # else the marks are no tokens
        tokens = [token for part in parts for token in (words.tokenize_str(part) if part else ())]
        return (
            bool(matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens))
            and matcher.is_accepting()
        )

    expected = taken(grammar, answer)
    head, thought = "", 'so {"a": </thin x\n</think>\n\n' if form.begins_thinking else "<think>\nso /b </think>"
    if form.channels:
        head, thought = "<|channel|>final<|message|>", "<|channel|>analysis<|message|>so <|e<|end|><|start|>assistant"
    whole = thoughtful(spoken(grammar, form), form)
    assert taken(whole, thought + head + answer) == expected
    assert taken(whole, head + answer) == (expected and not form.begins_thinking)


PLACED = {"x": {"$ref": "#/$defs/Item"}}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"properties": PLACED, "$defs": {"Item": {"type": "string"}}}, {"properties": {"x": {"type": "integer"}}}),
        (
            {"properties": PLACED, "$defs": {"Item": {"type": "string"}}},
            {"properties": PLACED, "$defs": {"Item": {"type": "integer"}}},
        ),
        (
            {
                "properties": {"x": {"$ref": "#/definitions/I"}},
                "definitions": {"I": {"type": "string"}},
                "$id": "http://a/b",
            },
            {"properties": {"x": {"type": "integer"}, "y": {"$ref": "#/properties/x"}}},
        ),
    ],
    ids=["one", "of-one-name", "elsewhere"],
)
def test_each_tool_has_its_own_definitions(first: dict[str, Any], second: dict[str, Any]) -> None:
    engine = engine_of(Obedient)
    with served(engine) as server:
        tools = [tool("f", **first), tool("g", **second)]
        ask(server, "/v1/chat/completions", "call f Rome", tools=tools, tool_choice="required")
    grammar = engine.seen[-1].sampling.grammar.text
    assert allows(grammar, "f", {"x": "a"}) and not allows(grammar, "f", {"x": 1})
    assert allows(grammar, "g", {"x": 1}) and not allows(grammar, "g", {"x": "a"})


LEAVES = {
    "properties": {
        "text": {"type": "string"},
        "kind": {"type": "string", "enum": ["a", "b c"]},
        "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
    },
    "required": ["items"],
    "$defs": {"Item": {"type": "integer"}},
}
FUNCTIONS = [("f", LEAVES), ("g", {"type": "object"})]
XML = "<tool>\n<function=f>\n{}</function>\n</tool>"
TEXT, KIND, ITEMS = (f"<parameter={key}>\n{{}}\n</parameter>\n" for key in ("text", "kind", "items"))
CODER = TaggedCalls(
    "<tool>\n<function=", ">\n", "<parameter=", ">\n", "\n</parameter>\n", "</function>\n</tool>", "", ""
)
NAMED = NamedCalls("<all><one>", "<sep>", "</one>", "<one>", "</all>")
COMMENTARY = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"


@pytest.mark.parametrize(
    ("form", "text", "allowed"),
    [
        (CODER, XML.format(TEXT.format("a\n</b> c") + KIND.format("b c") + ITEMS.format("[1,2]")), True),
        (CODER, XML.format(ITEMS.format("[]")), True),
        (CODER, XML.format(KIND.format("c") + ITEMS.format("[]")), False),
        (CODER, XML.format(ITEMS.format('["a"]')), False),
        (CODER, XML.format(TEXT.format("a")), False),
        (CODER, XML.format("").replace("=f", "=g"), True),
        (CODER, XML.format("").replace("=f", "=h"), False),
        (NAMED, '<all><one>f<sep>{"items":[1]}</one></all>', True),
        (NAMED, '<all><one>f<sep>{"items":["a"]}</one></all>', False),
        (ChannelCalls(), COMMENTARY.format("f") + '{"items":[1]}', True),
        (ChannelCalls(), COMMENTARY.format("h") + "{}", False),
    ],
)
def test_calls_of_every_form_can_be_forced(form: Any, text: str, allowed: bool) -> None:
    words = LLTokenizer((locate("tiny") / "tokenizer.json").read_text(encoding="utf-8"))
    matcher = LLMatcher(words, form.lark(FUNCTIONS))
    assert not matcher.is_error(), matcher.get_error()
    tokens = words.tokenize_str(text)
    assert (matcher.validate_tokens(tokens) == len(tokens)) == allowed
    assert not allowed or (matcher.consume_tokens(tokens) and matcher.is_accepting())


def test_a_tool_whose_arguments_hold_such_arguments() -> None:
    engine = engine_of(Obedient)
    with served(engine) as server:
        tree = tool("f", properties={"in": {"$ref": "#"}, "x": {"type": "integer"}}, additionalProperties=False)
        ask(server, "/v1/chat/completions", "call f Rome", tools=[tree], tool_choice="required")
    grammar = engine.seen[-1].sampling.grammar.text
    assert allows(grammar, "f", {"in": {"in": {"x": 1}}})
    assert not allows(grammar, "f", {"in": {"name": "f", "arguments": {}}})


def test_a_thought_that_the_prompt_has_begun_goes_before_a_form() -> None:
    engine = engine_of(Thinking)
    with served(engine, temperature=0) as server:
        form = {"type": "json_object"}
        found = ask(server, "/v1/chat/completions", 'so </think> {"a": 1}', response_format=form)
        message = found["choices"][0]["message"]
        assert message["reasoning_content"] == "so" and message["content"] == '{"a": 1}'
        grammar = engine.seen[-1].sampling.grammar
        assert (grammar.kind, grammar.key) == ("lark", "response_format") and "thought" in grammar.text
        last = {"role": "assistant", "content": '{"a": 1}'}
        ask(server, "/v1/chat/completions", "a", messages=[last], continue_final_message=True, response_format=form)
        assert engine.seen[-1].sampling.grammar.kind == "json_object"  # its thought is over


def test_a_forced_answer_is_no_thought_where_the_engine_has_no_place_for_one() -> None:
    with served(engine_of(Simple), temperature=0) as server:

        def answer(said: str, **body: Any) -> Any:
            return ask(server, "/v1/chat/completions", said, **body)["choices"][0]

        assert answer("a b </think> c")["message"]["reasoning_content"] == "a b"
        formed = answer('{"a": 1}', response_format={"type": "json_object"})["message"]
        assert formed["content"] == '{"a": 1}' and "reasoning_content" not in formed


ANSWER = {"type": "object", "properties": {"y": {"$ref": "#/$defs/I"}}, "$defs": {"I": {"type": "integer"}}}
FORMAT_OF_ANSWER = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER}}


@pytest.mark.parametrize("form", [{"type": "json_object"}, FORMAT_OF_ANSWER])
def test_a_form_of_answers_leaves_calls_possible(form: dict[str, Any]) -> None:
    engine = engine_of(Obedient)
    with served(engine) as server:

        def grammar(**body: Any) -> Any:
            tools = [tool("f", properties={"x": {"type": "integer"}})]
            found = ask(server, "/v1/chat/completions", "call f Rome", tools=tools, response_format=form, **body)
            return engine.seen[-1].sampling.grammar, found["choices"][0]["finish_reason"]

        either, reason = grammar()
        assert either.key == "response_format" and reason == "tool_calls"
        assert allows(either.text, "f", {"x": 1}) and not allows(either.text, "f", {"x": "a"})
        words = LLTokenizer((locate("tiny") / "tokenizer.json").read_text(encoding="utf-8"))
        for text, allowed in (('{"y":1}', True), ('{"y":"a"}', form["type"] == "json_object"), ("[1]", False)):
            tokens = words.tokenize_str(text)
            assert (LLMatcher(words, either.text).validate_tokens(tokens) == len(tokens)) == allowed
        forced, reason = grammar(tool_choice="required")
        assert forced.key == "tools" and reason == "tool_calls"
        alone, _ = grammar(tool_choice="none")
        assert alone.key == "response_format" and "call:" not in alone.text


REMARKS = {
    "type": "object",
    "properties": {
        "format": {"type": "string", "format": "password", "default": {"format": "x"}},
        "map": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"format": "uint8"}},
        "any": {"anyOf": [{"type": "string", "format": "path"}, {"const": {"format": "path"}}]},
        "day": {"type": "string", "format": "date"},
    },
    "required": ["format"],
}


def test_what_a_schema_remarks_is_no_reason_to_refuse_it() -> None:
    engine = engine_of(Obedient)
    with served(engine) as server:
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": REMARKS}}
        whole = tool("f", **{key: value for key, value in REMARKS.items() if key != "type"})
        for asked in ({"response_format": form}, {"structured_outputs": {"json": REMARKS}}, {"tools": [whole]}):
            choice = {"tool_choice": "required"} if "tools" in asked else {}
            ask(server, "/v1/chat/completions", "call f Rome", **asked, **choice)
            grammar = engine.seen[-1].sampling.grammar.text
            for arguments, allowed in (
                ({"format": "a", "any": {"format": "path"}}, True),
                ({"format": "a", "map": {"b": 1}, "any": "c"}, True),
                ({"format": "a", "any": {"format": "other"}}, False),
                ({"format": "a", "day": "Monday"}, False),
                ({"map": {}}, False),
            ):
                text = json.dumps(arguments, separators=(",", ":"))
                words = LLTokenizer((locate("tiny") / "tokenizer.json").read_text(encoding="utf-8"))
                tokens = words.tokenize_str(text)
                matcher = LLMatcher(words, grammar)
                assert not matcher.is_error(), matcher.get_error()
                taken = (
                    allows(grammar, "f", arguments)
                    if "tools" in asked
                    else matcher.validate_tokens(tokens) == len(tokens)
                )
                assert taken == allowed, (asked, arguments)
