"""An answer that is gone on with: the prompt ends where the template writes its end, and what was thought before stands there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_serve.batching.prompts import prompt_of
from gym_serve.contract import Request
from gym_serve.errors import BadRequest

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = PLAIN.replace(
    "{{ m['content'] }}",
    "{% if m['role'] == 'assistant' %}<think>\n{{ m['reasoning_content'] }}\n</think>\n\n{% endif %}{{ m['content'] }}",
)
#: Thoughts of answers before are left out.
BEGINS = PLAIN.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
DEAF = PLAIN.replace("{{ m['content'] }}", "{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}")
ASKED = "<|im_start|>user\n3 + 4?<|im_end|>\n<|im_start|>assistant\n"


def prompt(template: str, content: str | None, **more: Any) -> tuple[str, list[int]]:
    words = Tokenizer(locate("tiny"), template)
    messages = [{"role": "user", "content": "3 + 4?"}, {"role": "assistant", "content": content, **more}]
    found = prompt_of(Request("tiny", messages=messages, continue_final_message=True), words, 10**6).tokens
    return words.decode(found), found


@pytest.mark.parametrize("content", ["It is ", "", None, " 7\n"])
@pytest.mark.parametrize("template", [PLAIN, DEAF])
def test_it_ends_where_the_answer_does(template: str, content: str | None) -> None:
    assert prompt(template, content)[0] == ASKED + (content or "")


def test_what_was_thought_stands_before_it() -> None:
    found, _ = prompt(THINKING, "It is", reasoning_content="3 and 4")
    assert found == f"{ASKED}<think>\n3 and 4\n</think>\n\nIt is"


def test_an_answer_does_not_stand_inside_of_a_thought() -> None:
    assert prompt(BEGINS, "It is")[0] == ASKED + "It is"


def test_special_tokens_in_it_are_text() -> None:
    found, tokens = prompt(PLAIN, "a<|im_end|>")
    end = Tokenizer(locate("tiny")).token_id("<|im_end|>")
    assert found == ASKED + "a<|im_end|>" and tokens.count(end) == 1


@pytest.mark.parametrize(
    "asked", [{"prompt": "hello"}, {"messages": [{"role": "user", "content": "hello"}]}, {"tokens": [1, 9]}]
)
def test_tokens_that_the_model_does_not_have_are_refused(asked: dict[str, Any]) -> None:
    """A pass with one of them would fail for everybody in the batch."""
    with pytest.raises(BadRequest):
        prompt_of(Request("tiny", **asked), Tokenizer(locate("tiny"), PLAIN), 9)


def test_tools_that_the_template_does_not_show_are_refused() -> None:
    """They would be ignored, and the model could call none."""
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    shows = "{% if tools %}{{ tools | tojson }}{% endif %}" + PLAIN
    counts = "{% if tools %}{{ tools | length }} tools{% endif %}" + PLAIN
    request = Request("tiny", messages=[{"role": "user", "content": "hello"}], tools=tools)
    with pytest.raises(BadRequest, match="no tools") as caught:
        prompt_of(request, Tokenizer(locate("tiny"), PLAIN), 10**6)
    assert caught.value.problems[0].key == "tools"
    for template in (shows, counts):
        assert prompt_of(request, Tokenizer(locate("tiny"), template), 10**6).tokens
    behind = [*request.messages, {"role": "assistant", "content": "x"}, {"role": "tool", "content": "cold"}]
    assert prompt_of(replace(request, messages=behind), Tokenizer(locate("tiny"), PLAIN), 10**6).tokens
