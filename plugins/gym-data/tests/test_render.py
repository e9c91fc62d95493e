"""Chat templates are foreign code: they see messages, and reach nothing else."""

import time

import pytest

from gym_data.chat import render
from gym_data.chat.chat_rendering import ChatRenderer, ChatTemplateSpec, RenderRequest
from gym_data.chat.loss_masks import unmark
from gym_data.chat.render import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]


def run(text, **values):
    return ChatTemplate(text).render(MESSAGES, None, False, values)


def test_the_usual_means_of_chat_templates_work():
    loop = "{% for m in messages if m.role == 'user' %}\n  {% set x = m.content | trim %}\n"
    text = loop + "{{ x ~ '!' }}{% continue %}{% endfor %}"
    assert run(text) == "hi!"
    assert run("{{ {'a': 'é<'} | tojson }}") == '{"a": "é<"}'
    assert run("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ bos }}", bos="B") == "2B"
    assert run("{% set x | upper %}a{% endset %}{{ x }}{% filter upper %}b{% endfilter %}") == "AB"
    assert len(run("{{ strftime_now('%Y') }}")) == 4
    assert run("{{ 'a-{}'.format(1) }}{{ 'x' | replace('x', 'y') }}{{ 'a b'.split() | join('+') }}") == "a-1ya+b"


def test_generation_blocks_become_spans_also_through_captured_text():
    text = (
        "{% set x %}<{% generation %}one{% endgeneration %}>{% endset %}{{ x }}{% generation %}two{% endgeneration %}"
    )
    rendered = unmark(run(text))
    assert rendered.text == "<one>two"
    assert [rendered.text[start:end] for start, end in rendered.spans] == ["one", "two"]


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% set ns = namespace(__class__=1) %}",
        "{{ raise_exception('no system') }}",
        "{{ undefined_thing.attribute }}",
        "{% include 'other' %}",
        "{{ 1 / 0 }}",
        "{% broken",
    ],
)
def test_what_a_template_may_not_do_is_a_refusal(text):
    with pytest.raises(ValueError, match="the chat template refused it"):
        run(text)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a' * 10**10 }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ 'a' | center(10**9) }}{{ 'a'.ljust(10**9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ 10 ** (10 ** 10) }}{{ (10 ** 999) ** 999 }}",
        "{{ 'a\nb' | indent(10**9) }}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x | replace('a', 'aa') %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'a' * 10000 }}{% endfor %}",
    ],
)
def test_a_template_cannot_fill_the_memory(text):
    with pytest.raises(ValueError, match="the chat template"):
        run(text)


@pytest.mark.parametrize(
    "text",
    [
        "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
        "{% for i in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    ],
)
def test_a_template_cannot_run_for_ever(text, monkeypatch):
    monkeypatch.setattr(render, "SECONDS", 0.2)
    begun = time.monotonic()
    with pytest.raises(ValueError, match="the chat template"):
        run(text)
    assert time.monotonic() - begun < 5


TEXTS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
JOINED = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text or '#' }}{% endfor %}{% endfor %}"
EITHER = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text or '#' }}{% endfor %}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("template", [TEXTS, JOINED, PARTS, EITHER], ids=["texts", "joined", "parts", "either"])
@pytest.mark.parametrize("media", [[], ["image", "video"]])
def test_contents_are_handed_over_as_a_template_takes_them(template, media):
    spec = ChatTemplateSpec({"default": template}, {}, [], [], [], [], parts=media)
    (found,) = ChatRenderer(spec).learnable(RenderRequest(MESSAGES, wanted=[1])).sequences
    assert found.text == "<user>hi<assistant>yo"
    for mark in ("<image>", "<video>"):
        shown = [{"role": "user", "content": f"{mark}hi"}]
        (found,) = ChatRenderer(spec).learnable(RenderRequest(shown, prompt=True)).sequences
        assert found.text == ("<user>#hi" if media and "p.text" in template else f"<user>{mark}hi")
