"""How templates have answers written, found by rendering: those of this package, and shapes that others have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import gym_data.templates
from gym_data.chat.answer_format import AnswerFormat, CallFormat, answer_format_of
from gym_data.location import locate
from gym_data.tokenizer import Tokenizer

TAGGED = CallFormat("<tool_call>\n", "\n</tool_call>")
EXPECTED = {
    "chatml": AnswerFormat(),
    "mistral": AnswerFormat(),
    "llama3": AnswerFormat(CallFormat("", "", arguments="parameters")),
    "qwen": AnswerFormat(TAGGED),
    "qwen3": AnswerFormat(TAGGED, "<think>", "</think>"),
}
ANSWERS = "{% for m in messages %}{{ m.role + ':' + m.content.split('</think>')[-1] + ';' }}{% endfor %}"
PROMPTED = ANSWERS + "{% if add_generation_prompt %}assistant:<think>\n{% endif %}"
LISTED = """{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}{{ c.function | tojson }}
{%- endfor %}]{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}"""
REFUSING = "{% for m in messages if m.role != 'user' %}{{ raise_exception('no') }}{% endfor %}a"


def test_the_tiny_model_writes_thoughts_and_calls_in_tags():
    tokenizer = Tokenizer(locate("tiny"))
    found = answer_format_of(tokenizer)
    assert _marks(found) == AnswerFormat(TAGGED, "<think>", "</think>")
    marks = ("<tool_call>", "</tool_call>")
    assert sorted(found.calls.tokens) == sorted((mark, tokenizer.token_id(mark)) for mark in marks)


@pytest.mark.parametrize("name", EXPECTED)
def test_packaged_templates(name):
    text = (Path(gym_data.templates.__file__).parent / f"{name}.jinja").read_text()
    assert _marks(answer_format_of(Tokenizer(locate("tiny"), template=text))) == EXPECTED[name]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (PROMPTED, AnswerFormat(None, "<think>", "</think>", begins_thinking=True)),
        (LISTED, AnswerFormat(CallFormat("[TOOL_CALLS] ", "", listed=True))),
        (REFUSING, AnswerFormat()),
    ],
    ids=["the prompt begins the thought", "calls in a list", "refuses answers"],
)
def test_shapes_of_others(template, expected):
    assert _marks(answer_format_of(Tokenizer(locate("tiny"), template=template))) == expected


def _marks(found: AnswerFormat) -> AnswerFormat:
    """Leave out which of the marks are tokens here, where the template is another model's."""
    return found if found.calls is None else replace(found, calls=replace(found.calls, tokens=()))
