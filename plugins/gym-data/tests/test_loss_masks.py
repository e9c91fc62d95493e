"""Which parts of a conversation are learnt."""

import pytest
from data_cases import MARKED, UNMARKED, chat, text_of

from gym_data.tokenizer import Tokenizer

#: As Qwen3: a reasoning block in the last answer that earlier answers lose.
REWRITING = UNMARKED.replace(
    "{% else %}{{ m.content",
    "{% elif false %}{% else %}{{ ('<think></think>' if loop.last and m.role == 'assistant' else '') + m.content",
).replace("{% if m.role == 'assistant' %}", "{% if false %}")


def learnt(path, messages, wanted, tools=(), everything=False):
    tokenizer = Tokenizer(path)
    found = tokenizer.learnable(messages, list(tools), wanted, everything)
    return [text_of(tokenizer, *encoded) for encoded in tokenizer.encode_rendered(found)]


@pytest.mark.parametrize("template", [MARKED, UNMARKED])
def test_marked_and_unmarked_templates_learn_the_same(template, with_template):
    path = with_template(template)
    messages = chat("a", "one", "b", "two", "c", "three", system="s")
    assert learnt(path, messages, [2, 4, 6]) == ["one<|im_end|>|two<|im_end|>|three<|im_end|>"]
    assert learnt(path, messages, [6]) == ["three<|im_end|>"]
    assert learnt(path, messages, [2, 6]) == ["one<|im_end|>|three<|im_end|>"]
    assert learnt(path, messages, []) == []


def test_everything_is_all_but_the_silenced(with_template):
    path = with_template(MARKED)
    whole = learnt(path, chat("a", "one", "b", "two"), [1, 3], everything=True)
    # The first token is never learnt.
    assert whole == [
        "user\na<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
    ]
    part = learnt(path, chat("a", "one", "b", "two"), [3], everything=True)
    assert "one" not in part[0] and part[0].endswith("two<|im_end|>\n")


def test_the_closing_token_is_learnt_also_outside_the_mark(with_template):
    outside = MARKED.replace(
        "{{ m.content + '<|im_end|>' }}{% endgeneration %}", "{{ m.content }}{% endgeneration %}<|im_end|>"
    )
    assert outside != MARKED
    assert learnt(with_template(outside), chat("a", "one", "b", "two"), [1, 3]) == ["one<|im_end|>|two<|im_end|>"]


def test_an_answer_that_is_shown_differently_later_has_a_sequence_of_its_own(with_template):
    path = with_template(REWRITING)
    sequences = learnt(path, chat("a", "one", "b", "two"), [1, 3])
    assert sequences == ["<think></think>one<|im_end|>", "<think></think>two<|im_end|>"]
    assert learnt(path, chat("a", "one", "b", "two"), [3]) == ["<think></think>two<|im_end|>"]
    tokenizer = Tokenizer(path)
    last = tokenizer.learnable(chat("a", "one", "b", "two"), [], [1, 3])[-1].text
    assert last.count("<think>") == 1  # the context shows the earlier answer as the model will see it


#: As Qwen3, with marks: thoughts are shown in the last answer alone.
FORGETTING = MARKED.replace(
    "{{ m.content + '<|im_end|>' }}{% endgeneration %}",
    "{{ (m.content if loop.last else m.content.split('</think>')[-1]) + '<|im_end|>' }}{% endgeneration %}",
)
THINKING = chat("a", "<think>x</think>one", "b", "two", "c", "<think>y</think>three", "d")


@pytest.mark.parametrize("marks", ["{% generation %}|{% endgeneration %}", "|"])
def test_answers_are_learnt_with_the_thoughts_that_later_turns_do_not_show(marks, with_template):
    begin, end = marks.split("|")
    path = with_template(FORGETTING.replace("{% generation %}", begin).replace("{% endgeneration %}", end))
    first, second = "<think>x</think>one<|im_end|>", "two<|im_end|>"
    assert learnt(path, THINKING, [1, 3, 5]) == [first, f"{second}|<think>y</think>three<|im_end|>"]
    assert learnt(path, THINKING, [1, 3]) == [first, second]
    assert learnt(path, chat("a", "one", "b", "two"), [1, 3]) == ["one<|im_end|>|two<|im_end|>"]


#: As gpt-oss: the thoughts before a tool call are gone once the last answer is there.
DROPPING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.thinking and (loop.last or messages[-1].role == 'tool') %}<think>{{ m.thinking }}</think>{% endif %}"
    "{% for call in m.tool_calls or () %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
    "{{ m.content | tojson if m.role == 'tool' else m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_an_answer_is_learnt_behind_its_prompt_also_where_that_is_shown_otherwise_later(with_template):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "thinking": "x", "tool_calls": [call]},
        {"role": "tool", "content": '{"sum": "2"}', "name": "add"},
        {"role": "assistant", "content": "one", "thinking": "y"},
    ]
    called, said = '<think>x</think>add{"a": 1}<|im_end|>', "<think>y</think>one<|im_end|>"
    assert learnt(with_template(DROPPING), messages, [1, 3]) == [f"{called}|{said}"]
    hiding = DROPPING.replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}")
    with pytest.raises(ValueError, match="message 4 as a continuation"):
        learnt(with_template(hiding), messages, [1, 3])


def test_blanks_that_are_marked_behind_the_closing_token_leave_it_the_end(with_template):
    """As in TRL's templates for training."""
    path = with_template(MARKED.replace("m.content + '<|im_end|>' }}{% endg", "m.content + '<|im_end|>\\n' }}{% endg"))
    tokenizer = Tokenizer(path)
    assert learnt(path, chat("a", "one"), [1]) == ["one<|im_end|>\n"]
    assert tokenizer.closes(*tokenizer.chat(chat("a", "one")))
    assert tokenizer.turn_ends == [tokenizer.token_id("<|im_end|>")]


def test_what_ends_a_text_may_stand_behind_a_question_without_an_answer(with_template):
    """As in Phi-3, with marks."""
    end = "<|endoftext|>"
    behind = f"{{% if messages[-1].role == 'user' %}}{end}{{% else %}}{{% generation %}}{end}{{% endgeneration %}}{{% endif %}}"
    ending = f"{MARKED}{{% if not add_generation_prompt %}}{behind}{{% endif %}}"
    found = learnt(with_template(ending), chat("a", "one", "b", "two"), [1, 3])
    assert found == [f"one<|im_end|>|{end}", f"two<|im_end|>|{end}"]


def test_marks_around_the_last_answer_alone_are_taken_for_each(with_template):
    last = MARKED.replace("{% if m.role == 'assistant' %}", "{% if m.role == 'assistant' and loop.last %}")
    assert learnt(with_template(last), chat("a", "one", "b", "two"), [1, 3]) == ["one<|im_end|>|two<|im_end|>"]
    assert learnt(with_template(last), chat("a", "one", "b", "two"), [3]) == ["two<|im_end|>"]


@pytest.mark.parametrize("template", [FORGETTING, REWRITING])
def test_all_but_an_answer_that_is_shown_differently_later_is_refused(template, with_template):
    path = with_template(template)
    with pytest.raises(ValueError, match="message 2, which is not to be learnt, differently"):
        learnt(path, THINKING, [3, 5], everything=True)
    kept = learnt(path, THINKING[:-1], [1, 3], everything=True)
    assert "one" in kept[0] and "three" not in kept[0]


def test_a_prompt_that_opens_what_the_answer_lacks(with_template):
    opening = UNMARKED.replace(
        "<|im_start|>assistant\\n' }}{% endif %}", "<|im_start|>assistant\\n<think>' }}{% endif %}"
    )
    assert opening != UNMARKED
    assert learnt(with_template(opening), chat("a", "one"), [1]) == ["one<|im_end|>"]
    assert learnt(with_template(opening), chat("a", "<think>x</think>one"), [1]) == ["x</think>one<|im_end|>"]


def test_a_template_that_shuffles_is_refused(with_template):
    shuffling = "{% for m in messages | reverse %}{{ m.role + m.content }}{% endfor %}"
    with pytest.raises(ValueError, match="as a continuation of its prompt"):
        learnt(with_template(shuffling), chat("a", "one"), [1])


@pytest.mark.parametrize(
    ("template", "messages", "tools", "why"),
    [
        (
            MARKED.replace("for m in messages", "for m in messages if m.role != 'system'"),
            chat("a", "b", system="Be kind."),
            [],
            "leaves out message 1 .system",
        ),
        (MARKED, chat("a", "b"), [{"function": {"name": "add"}}], "leaves out the tools"),
        (
            "{{ raise_exception('System role not supported') }}",
            chat("a", "b", system="s"),
            [],
            "refused it: System role not supported",
        ),
    ],
)
def test_a_template_that_leaves_something_out_is_refused(template, messages, tools, why, with_template):
    with pytest.raises(ValueError, match=why):
        learnt(with_template(template), messages, [len(messages) - 1], tools)
