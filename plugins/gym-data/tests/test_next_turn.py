"""What stands between two answers: the end that was sampled is not written twice, and a template that cannot is named."""

import json

import pytest
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers

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


def test_messages_that_a_template_leaves_out_are_named(model):
    silent = "{% for m in messages if m.role != 'tool' %}{{ m.role }}: {{ m.content }}\n{% endfor %}" + PROMPT
    shown = NextTurn(Tokenizer(model, silent))
    with pytest.raises(DataError, match="leaves out what an environment said as `tool`"):
        shown.tokens([{"role": "tool", "content": "4 <|im_end|>"}], 7)
    assert shown.tokens([{"role": "user", "content": "4 <|im_end|>"}], 7)


def test_an_end_that_earlier_answers_have_and_the_last_one_has_not_is_not_written_twice(model):
    """So is gpt-oss: an answer ends with another token where it is the last."""
    text = (
        "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}"
        "{{ '<|im_end|>' if loop.last and m.role == 'assistant' else '<|endoftext|>' }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
    )
    tokenizer = Tokenizer(model, text)
    last = tokenizer.token_id("<|im_end|>")
    assert tokenizer.turn_ends == [last]
    shown = NextTurn(Tokenizer(model, text)).tokens([{"role": "user", "content": "hello"}], last)
    assert tokenizer.decode(shown) == "<|im_start|>user: hello<|endoftext|><|im_start|>assistant: "


def test_tools_and_values_of_a_prompt_are_those_of_its_later_turns(model, tmp_path):
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").unlink()
    tool = "{% for m in messages %}[{{ m.role }} {{ mood }}]{{ m.content }}{% endfor %}"
    both = [{"name": "default", "template": OPEN}, {"name": "tool_use", "template": tool}]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": both}))
    tokenizer = Tokenizer(tmp_path)
    offered = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    shown = NextTurn(tokenizer).tokens([{"role": "tool", "content": "4"}], 7, offered, {"mood": "glad"})
    assert tokenizer.decode(shown) == "[tool glad]4"


def test_what_follows_an_end_is_encoded_as_behind_it(tmp_path):
    """Some tokenizers write a space at the beginning of a text alone."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -1.0), *[(letter, -2.0) for letter in "#:abcegimnonqrstuy"]]
    fast = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    fast.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "</s>")])
    fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    text = "{% for m in messages %}#{{ m.content }}{% endfor %}{% if add_generation_prompt %}#:{% endif %}"
    tokenizer = Tokenizer(tmp_path, text)
    shown = NextTurn(tokenizer).tokens([{"role": "user", "content": "one"}], tokenizer.eos_id)
    assert [tokenizer.written(token) for token in shown] == [*"#one#:"]
