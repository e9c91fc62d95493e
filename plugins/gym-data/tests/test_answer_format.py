"""How templates have answers written, found by rendering: those of this package, and shapes that others have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import gym_data.templates
from gym_data.chat.answer_format import AnswerFormat, answer_format_of, values_read
from gym_data.chat.answer_grammar import thoughtful
from gym_data.chat.channels import ChannelCalls
from gym_data.chat.json_calls import CallFormat
from gym_data.chat.named_calls import NamedCalls
from gym_data.chat.tagged_calls import TaggedCalls
from gym_data.location import locate
from gym_data.tokenizer import Tokenizer

TAGGED = CallFormat("<tool_call>\n", "\n</tool_call>")
TAGS = TaggedCalls(
    "<tool_call>\n<function=", ">\n", "<parameter=", ">\n", "\n</parameter>\n", "</function>\n</tool_call>", "", ""
)
PAIRS = TaggedCalls(
    "<tool_call>", "\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>", "", ""
)
SECTION = NamedCalls("<all><one><tool>", "<sep>", "</one>", "<one><tool>", "</all>")
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
CLOSED = """{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content }}\n</think>\n
{% endif %}{{ m.content }};{% endfor %}{% if add_generation_prompt %}assistant:<think>\n\n</think>\n\n{% endif %}"""
CALLING = """{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}BEGIN{% for c in m.tool_calls %}CALL{% endfor %}END
{%- else %}{{ m.content }}{% endif %}<end>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""
XML = """<tool_call>
<function={{ c.function.name }}>
{% for key, value in c.function.arguments | items %}<parameter={{ key }}>
{{ value }}
</parameter>
{% endfor %}</function>
</tool_call>"""
KEYS = """<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments | items %}{{ '\n' }}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v }}</arg_value>{% endfor %}{{ '\n' }}</tool_call>"""
LINE = "<one><tool>{{ c.function.name }}<sep>{{ c.function.arguments | tojson }}</one>"
PYTHON = (
    "<tool>{{ c.function.name }}({% for k, v in c.function.arguments | items %}{{ k }}={{ v }}, {% endfor %})</tool>"
)
HARMONY = """{% for m in messages %}<|start|>{{ m.role }}{% if m.tool_calls %} to=functions.{{ m.tool_calls[0].function.name }}
{#- #}<|channel|>commentary json<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>
{%- else %}<|channel|>final<|message|>{{ m.content }}<|return|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""


def calling(call: str, begin: str = "", end: str = "") -> str:
    return CALLING.replace("BEGIN", begin).replace("END", end).replace("CALL", call)


REFUSING = "{% for m in messages if m.role != 'user' %}{{ raise_exception('no') }}{% endfor %}a"


def test_the_tiny_model_writes_thoughts_and_calls_in_tags():
    tokenizer = Tokenizer(locate("tiny"))
    found = answer_format_of(tokenizer)
    assert _marks(found) == AnswerFormat(TAGGED, "<think>", "</think>")
    marks = ("<tool_call>", "</tool_call>")
    assert sorted(found.calls.tokens) == sorted((mark, tokenizer.token_id(mark)) for mark in marks)
    assert sorted(found.tokens) == sorted((mark, tokenizer.token_id(mark)) for mark in ("<think>", "</think>"))


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
        (CLOSED, AnswerFormat(None, "", "</think>")),
        (calling(XML), AnswerFormat(TAGS)),
        (calling(KEYS), AnswerFormat(PAIRS)),
        (calling(LINE, "<all>", "</all>"), AnswerFormat(SECTION)),
        (calling(PYTHON), AnswerFormat()),
        (HARMONY, AnswerFormat(ChannelCalls(), channels=True)),
    ],
    ids=[
        "the prompt begins the thought",
        "calls in a list",
        "refuses answers",
        "the prompt ends the thought",
        "arguments in tags",
        "keys and values in tags",
        "names before JSON, in a section",
        "calls of Python",
        "channels",
    ],
)
def test_shapes_of_others(template, expected):
    assert _marks(answer_format_of(Tokenizer(locate("tiny"), template=template))) == expected


SWITCHED = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}
{%- if add_generation_prompt %}<assistant>{% if thinking %}<think>{% else %}</think>{% endif %}{% endif %}"""


@pytest.mark.parametrize(
    ("template", "values", "begins"),
    [
        (SWITCHED, {"thinking": True}, True),
        (SWITCHED, {"thinking": False}, False),
        (PROMPTED, {"thinking": False}, True),
        (Path(gym_data.templates.__file__).parent / "qwen3.jinja", {"enable_thinking": False}, False),
    ],
)
def test_values_may_have_the_prompt_begin_a_thought(template, values, begins):
    text = template.read_text() if isinstance(template, Path) else template
    found = answer_format_of(Tokenizer(locate("tiny"), template=text), values)
    assert found.begins_thinking == begins and (found.thought_start == "<think>") == (begins or text != SWITCHED)
    over = "enable_thinking" in values
    assert found.thought_over == over and (thoughtful("start: /a/", found) is None) == (not found.thought_start or over)


@pytest.mark.parametrize(
    ("template", "read"),
    [
        ("{% broken", set()),
        ("{{ raise_exception(1) }}{{ bos_token }}{{ messages }}{{ tools }}{{ strftime_now('') }}", set()),
        ("{% if day is not defined %}{% set day = strftime_now('') %}{% endif %}{{ day }}{{ 'dusk' }}", {"day"}),
        ("{% macro f(x) %}{{ x ~ mode }}{% endmacro %}{% set a = 1 %}{{ f(a) }}{# hue #}{{ ns.of }}", {"mode", "ns"}),
        (
            "{% set a = a | default(1) %}{% for b in b %}{{ b }}{% endfor %}{% with c = c %}{% endwith %}",
            {"a", "b", "c"},
        ),
        (
            "{% for m in messages %}{% if m.c %}{% set c = 1 %}{% else %}{% set c = 2 %}{% endif %}{{ c }}{% endfor %}",
            set(),
        ),
        ("{% if y is not defined %}{% set y = 1 %}{% endif %}{{ y }}{{ eos_token }}", {"y"}),
        ("{% generation %}{% if brief | default(false) %}a{% endif %}{% endgeneration %}", {"brief"}),
    ],
)
def test_the_values_that_a_template_reads(template, read):
    tokenizer = Tokenizer(locate("tiny"), template=template, options={"bos_token": "a"})
    assert values_read(tokenizer) == read


def _marks(found: AnswerFormat) -> AnswerFormat:
    """Leave out which of the marks are tokens here, where the template is another model's."""
    return replace(found, calls=found.calls and found.calls.with_tokens(()), tokens=())
