"""What stands between two answers: the end that was sampled is not written twice, and a template that cannot is named."""

import pytest

from gym_core import DataError
from gym_data.next_turn import NextTurn
from gym_data.tokenizer import Tokenizer

TOLD = [{"role": "user", "content": "told <|im_end|>"}]
PROMPT = "{% if add_generation_prompt %}assistant:{% endif %}"
SPACED = "{% for m in messages %}{{ m.role }}: {{ m.content }} <|im_end|>{% endfor %}" + PROMPT
OPEN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}" + PROMPT
STRICT = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("text", [None, SPACED])
def test_an_end_that_was_sampled_stands_once(model, text):
    tokenizer = Tokenizer(model, text)
    end = tokenizer.token_id("<|im_end|>")
    shown = NextTurn(tokenizer).tokens(TOLD, end)
    assert shown.count(end) == 1, "the end of the message alone: what it says of ends is text"
    assert tokenizer.decode(shown).startswith(("\n<|im_start|>user\ntold", "user: told"))
    assert tokenizer.decode(shown).endswith(("assistant\n", "assistant:"))


def test_a_template_without_ends_begins_behind_the_answer(model):
    tokenizer = Tokenizer(model, OPEN)
    assert tokenizer.decode(NextTurn(tokenizer).tokens(TOLD, 7)) == "\nuser: told <|im_end|>\nassistant:"


def test_messages_that_a_template_refuses_are_named(model):
    with pytest.raises(DataError, match="no tools") as caught:
        NextTurn(Tokenizer(model, STRICT)).tokens([{"role": "tool", "content": "4"}], 7)
    assert caught.value.problems[0].key == "algorithm.environment"
