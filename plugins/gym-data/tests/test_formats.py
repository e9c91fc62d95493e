"""Rows of every shape, and what is said of rows that cannot be learnt from."""

import contextlib

import pytest

from gym_data.formats import Alpaca, Feedback, Messages, Preference, Segments, ShareGPT, Stepwise, Text
from gym_data.formats.detect import detect
from gym_data.rows import JudgedText, Named

CALL = '{"name": "add", "arguments": {"a": 1}}'


def contents(conversation):
    return [(message["role"], message["content"]) for message in conversation.messages]


def test_alpaca_joins_instruction_and_input_and_keeps_history():
    row = {"instruction": "Add", "input": "1 2", "output": "3", "h": [["hi", "hello"]], "s": "Be kind."}
    read = Alpaca(history="h", system="s").build().convert(row)
    assert contents(read) == [
        ("system", "Be kind."),
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "Add\n1 2"),
        ("assistant", "3"),
    ]


@pytest.mark.parametrize("label", [True, 1, "True", "false", False, 0])
def test_judgements_are_read_as_tables_have_them(label):
    row = {"messages": [user("a"), said("b")], "label": label}
    assert Feedback().build().convert(row).desirable is (label in (1, "True"))


@pytest.mark.parametrize("empty", ["", None])
def test_an_input_alone_is_a_prompt(empty):
    read = Alpaca().build().convert({"instruction": empty, "input": "1 2", "output": "3"})
    assert contents(read) == [("user", "1 2"), ("assistant", "3")]


def test_a_system_message_of_a_column_stands_before_rows_that_begin_with_none():
    reader, rest = Messages(system="s").build(), [user("a"), said("b", train=False)]
    for begun, wanted in (([], "column"), ([{"role": "system", "content": "own"}], "own")):
        read = reader.convert({"s": "column", "messages": [*begun, *rest]})
        assert contents(read) == [("system", wanted), ("user", "a"), ("assistant", "b")] and read.muted == {2}


def test_sharegpt_reads_tools_calls_and_results():
    turns = [("human", "1+1?"), ("function_call", CALL), ("observation", "2"), ("gpt", "Two.")]
    row = {"conversations": [{"from": who, "value": text} for who, text in turns], "tools": '[{"name": "add"}]'}
    read = ShareGPT().build().convert(row)
    assert [message["role"] for message in read.messages] == ["user", "assistant", "tool", "assistant"]
    assert read.messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert read.tools == ({"type": "function", "function": {"name": "add"}},)


def test_calls_may_stand_in_the_text_of_an_answer():
    """As in Hermes' rows, and in those of agents that write `Action:`."""
    turns = [("human", "1+1?"), ("gpt", f"<tool_call>{CALL}</tool_call>"), ("tool", "2"), ("gpt", "Two.")]
    read = ShareGPT().build().convert({"conversations": [{"from": who, "value": text} for who, text in turns]})
    assert contents(read)[1:3] == [("assistant", turns[1][1]), ("tool", "2")]


def test_messages_read_tool_calls_content_parts_and_silenced_answers():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    row = {
        "messages": [
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "+1?"}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "train": False},
            {"role": "tool", "content": "2", "tool_call_id": "c1"},
            {"role": "assistant", "content": "Two.", "reasoning_content": "Easy.", "tool_calls": None, "weight": 0},
        ],
        "tools": None,
    }
    read = Messages().build().convert(row)
    assert read.messages[0]["role"] == "system"
    assert read.messages[1]["content"] == "1+1?"
    assert read.messages[2]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert read.messages[4]["reasoning_content"] == "Easy."
    assert read.muted == {2, 4}


def test_the_one_call_of_an_older_message_is_read_as_a_list_of_calls():
    functions = [{"name": "add", "parameters": {"type": "object"}}]
    row = {
        "messages": [
            {"role": "user", "content": "1+1?", "function_call": None},
            {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a": 1}'}},
            {"role": "function", "name": "add", "content": "2"},
            {"role": "assistant", "content": "Two.", "function_call": None},
        ],
        "functions": functions,
    }
    read = detect([row]).build().convert(row)
    assert [message["role"] for message in read.messages] == ["user", "assistant", "tool", "assistant"]
    called = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert read.messages[1] == {"role": "assistant", "content": "", "tool_calls": [called]}
    assert read.tools == ({"type": "function", "function": functions[0]},)


def user(text):
    return {"role": "user", "content": text}


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


BAD = {
    "an empty list": ([], "there are no messages"),
    "no list": ("{", "is not JSON"),
    "a message without role": ([{"content": "a"}], r"message 1 has no role \(key `role`\)"),
    "an unknown role": ([{"role": "wizard", "content": "a"}], "unknown role 'wizard'"),
    "no content": ([user("a"), {"role": "assistant"}], "the content of message 2 is missing"),
    "a number for content": ([user("a"), said(3)], "is not text but int"),
    "an empty answer": ([user("a"), said(" ")], r"message 2 \(assistant\) is empty"),
    "ends with the user": ([user("a"), said("b"), user("c")], "ends with a message of the user"),
    "two users": ([user("a"), user("b"), said("c")], "follows another user message"),
    "two answers": ([user("a"), said("b"), said("c")], "answers no user message"),
    "begins with an answer": ([said("b")], "answers no user message"),
    "a late system message": ([user("a"), {"role": "system", "content": "s"}, said("b")], "not at the beginning"),
    "a result without call": ([user("a"), {"role": "tool", "content": "1"}, said("b")], "the result of no tool call"),
    "a call that is no JSON": (
        [user("a"), said("", tool_calls=[{"function": {"name": "f", "arguments": "{x"}}])],
        "the arguments of the tool call `f` is not JSON",
    ),
    "a call without name": ([user("a"), said("", tool_calls=[{"function": {}}])], "a tool call has no name"),
    "arguments that are a list": (
        [user("a"), said("", tool_calls=[{"function": {"name": "f", "arguments": [1]}}])],
        "are not an object",
    ),
    "audio": ([user([{"type": "input_audio"}]), said("b")], "more than text, images, videos and sounds"),
    "a part of a video": (
        [user([{"type": "video", "video": "x.mp4", "video_start": 2.0}]), said("b")],
        "says `video_start` of one video",
    ),
    "an image in an answer": ([user("a"), said([{"type": "image", "image": "x.png"}])], "an answer holds images"),
    "a lone surrogate": ([user("a\ud800"), said("b")], "lone surrogate"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_conversations_say_why(name):
    messages, why = BAD[name]
    with pytest.raises(ValueError, match=why):
        Messages().build().convert({"messages": messages})


@pytest.mark.parametrize(
    ("format", "row", "why"),
    [
        (Alpaca(), {"instruction": "a", "output": ""}, r"the answer \(column `output`\) is empty"),
        (Alpaca(), {"instruction": "a"}, r"the answer \(column `output`\) is missing"),
        (Alpaca(), {"instruction": None, "output": "b"}, r"the prompt \(column `instruction`\) is missing"),
        (Alpaca(), {"instruction": "", "output": "b"}, "is empty"),
        (Alpaca(), {"instruction": "a", "output": ["b"]}, "holds more than text"),
        (Alpaca(history="h"), {"instruction": "a", "output": "b", "h": ["x"]}, "not a list of"),
        (ShareGPT(), {"conversations": [{"from": "function_call", "value": "{"}]}, "a tool call is not JSON"),
        (ShareGPT(), {}, "column `conversations` holds no list"),
        (Text(), {"text": " "}, "is empty"),
        (Feedback(), {"messages": [user("a"), said("b")], "label": "yes"}, "not true or false"),
        (Feedback(), {"messages": [user("a"), said("b")], "label": 2}, "not true or false"),
        (Feedback(), {"messages": [user("a"), said("b")], "label": None}, "not true or false"),
        (Preference(), {"prompt": "a", "chosen": "b", "rejected": "b"}, "both answers are the same"),
        (Preference(), {"prompt": "a", "chosen": "b", "rejected": " "}, r"message 2 \(assistant\) is empty"),
        (Preference(), {"prompt": "a", "chosen": "b", "rejected": []}, r"message 2 \(assistant\) is empty"),
        (Preference(), {"prompt": "a", "chosen": "b", "rejected": "c", "margin": "much"}, "is not a number"),
        (Preference(), {"prompt": "a", "chosen": [user("a"), user("b")], "rejected": "c"}, "follows another user"),
        (Preference(), {"prompt": "a", "chosen": "b"}, "is missing"),
        (Stepwise(), {"prompt": "a", "completions": ["b"], "labels": [True, False]}, "1 steps and 2 labels"),
        (Stepwise(), {"prompt": "a", "completions": ["b", " "], "labels": [True, False]}, "step 2 is empty"),
        (Stepwise(), {"prompt": "a", "completions": ["b"], "labels": [-1]}, "label 1 is neither true, false"),
        (Stepwise(), {"prompt": "a", "completions": ["b"], "labels": [None]}, "no step is judged"),
        (Stepwise(), {"prompt": "a", "completions": [], "labels": []}, "no step is judged"),
        (Stepwise(), {"prompt": "a", "completions": "b", "labels": [True]}, "column `completions` holds no list"),
        (Stepwise(), {"completions": ["b"], "labels": [True]}, "no columns with a prompt"),
        (Preference(), {"chosen": "b", "rejected": "c"}, "no columns with a prompt"),
    ],
)
def test_bad_rows_say_why(format, row, why):
    with pytest.raises(ValueError, match=why):
        format.build().convert(row)


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"instruction": "a", "input": "", "output": "b"}, "Alpaca"),
        ({"question": "a", "answer": "b"}, "Alpaca"),
        ({"messages": [user("a"), said("b")]}, "Messages"),
        ({"messages": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, "ShareGPT"),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, "ShareGPT"),
        ({"text": "a"}, "Text"),
        ({"messages": [user("a"), said("b")], "label": True}, "Feedback"),
        ({"prompt": "a", "completion": "b", "label": False}, "Feedback"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "Preference"),
        ({"prompt": [user("a")], "chosen": [user("a"), said("b")], "rejected": [user("a"), said("c")]}, "Preference"),
        ({"instruction": "a", "input": "", "chosen": "b", "rejected": "c"}, "Preference"),
        (
            {
                "conversations": [{"from": "human", "value": "a"}],
                "chosen": {"from": "gpt", "value": "b"},
                "rejected": {"from": "gpt", "value": "c"},
            },
            "Preference",
        ),
        ({"prompt": "a", "completions": ["b", "c"], "labels": [True, False]}, "Stepwise"),
    ],
)
def test_columns_tell_the_format_and_it_reads_the_row(row, name):
    format = detect([row])
    assert type(format).__name__ == name
    assert format.build().convert(row)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"instruction": "a", "context": "b", "response": "c", "category": "d"},
            [("user", "a\nb"), ("assistant", "c")],
        ),
        (
            {"id": "1", "system_prompt": "s", "question": "a", "response": "c"},
            [("system", "s"), ("user", "a"), ("assistant", "c")],
        ),
        ({"query": "a", "response": "b"}, [("user", "a"), ("assistant", "b")]),
        ({"problem": "a", "solution": "b"}, [("user", "a"), ("assistant", "b")]),
        ({"input": "a", "output": "b"}, [("user", "a"), ("assistant", "b")]),
        ({"prompt": "a", "completion": "b"}, [("user", "a"), ("assistant", "b")]),
        ({"question": "a", "context": {"no": ["text"]}, "answer": "b"}, [("user", "a"), ("assistant", "b")]),
        ({"system": "s", "messages": [user("a"), said("b")]}, [("system", "s"), ("user", "a"), ("assistant", "b")]),
    ],
)
def test_columns_of_well_known_datasets_are_read(row, expected):
    assert contents(detect([row]).build().convert(row)) == expected


TURNS = [user("a"), said("b"), user("c")]


@pytest.mark.parametrize("answer", [[said("d")], said("d"), "d"])
def test_prompt_and_completion_of_messages_are_read_as_trl_does_and_the_completion_alone_is_learnt(answer):
    row = {"prompt": TURNS, "completion": answer}
    read = detect([row]).build().convert(row)
    assert contents(read) == [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    assert read.muted == {1}
    judged = {**row, "label": True}
    assert detect([judged]).build().convert(judged).conversation == read


def test_whole_conversations_in_one_text_are_pairs_that_part_where_the_answers_do():
    """HH-RLHF as it is published: turns may hold empty lines, and white space around them is no part of them."""
    start = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHow are you?\n\nHuman:  Assistant: what is that?"
    row = {"chosen": f"{start}\n\nAssistant: me", "rejected": f"{start}\n\nAssistant: no idea\n"}
    pair = detect([row]).build().convert(row)
    turns = [("user", "Hi"), ("assistant", "Hello.\n\nHow are you?"), ("user", "Assistant: what is that?")]
    assert contents(pair.chosen) == [*turns, ("assistant", "me")]
    assert contents(pair.rejected) == [*turns, ("assistant", "no idea")]
    assert contents(pair.prompt) == turns and not pair.remarks
    asked = {**row, "prompt": "a"}  # a column with a prompt says that the others are answers
    assert contents(detect([asked]).build().convert(asked).chosen) == [("user", "a"), ("assistant", row["chosen"])]


def test_unknown_columns_tell_nothing():
    assert detect([{"x": 1}]) is None


@pytest.mark.parametrize("label", [1, "False", "0"])
def test_a_label_in_numbers_or_words_is_a_judgement_where_judgements_are_wanted(label):
    """Tables and CSV files have no booleans; what learns from conversations may have such a column for anything."""
    row = {"prompt": "a", "completion": "b", "label": label}
    found = detect([row], "feedback")
    assert isinstance(found, Feedback) and found.build().convert(row).desirable is (label == 1)
    assert isinstance(detect([row], "conversation"), Alpaca)
    text = {"text": "a", "label": label}
    assert detect([text], "feedback").build().convert(text) == JudgedText("a", label == 1)
    assert isinstance(detect([text], "conversation"), Text)


def test_a_pair_has_one_prompt_and_two_answers():
    pair = Preference().build().convert({"prompt": "a", "chosen": "b", "rejected": "c"})
    assert (contents(pair.prompt), pair.chosen.answer, pair.rejected.answer) == ([("user", "a")], "b", "c")


def test_answers_of_several_messages_continue_the_prompt_of_the_row():
    call = said("", tool_calls=[{"function": {"name": "f", "arguments": "{}"}}])
    found = [call, {"role": "tool", "content": "4"}, said("Four.")]
    row = {"prompt": [user("2 + 2?")], "chosen": found, "rejected": [said("Five.")], "tools": [{"name": "f"}]}
    pair = Preference().build().convert(row)
    assert [message["role"] for message in pair.chosen.messages] == ["user", "assistant", "tool", "assistant"]
    assert contents(pair.rejected) == [("user", "2 + 2?"), ("assistant", "Five.")]
    assert contents(pair.prompt) == [("user", "2 + 2?")]
    assert [side.tools[0]["function"]["name"] for side in (pair.chosen, pair.rejected)] == ["f", "f"]
    assert pair.remarks == ()


def test_sides_with_different_prompts_are_remarked_and_those_that_part_in_an_earlier_answer_are_not():
    def pair(chosen, rejected):
        return Preference().build().convert({"chosen": chosen, "rejected": rejected})

    apart = pair([user("a"), said("b")], [user("x"), said("c")])
    assert apart.shared == 0 and apart.remarks == ("pairs with different prompts, each answer learnt after its own",)
    turns = pair([user("a"), said("b"), user("c"), said("d")], [user("a"), said("x"), user("c"), said("d")])
    assert turns.shared == 1 and turns.remarks == ()


def test_a_whole_conversation_may_be_written_as_sharegpt_does():
    def turns(answer):
        return [{"from": "human", "value": "a"}, {"from": "gpt", "value": answer}]

    pair = Preference().build().convert({"chosen": turns("b"), "rejected": turns("c"), "margin": 2})
    assert (contents(pair.prompt), pair.remarks, pair.margin) == ([("user", "a")], (), 2.0)


def test_steps_are_right_wrong_likely_or_not_judged():
    row = {"question": "a", "completions": ["b", "c", "d", "e"], "labels": [True, False, None, 0.75]}
    steps = Stepwise(separator="\n\n").build().convert(row)
    assert (steps.steps, steps.labels) == (("b", "c", "d", "e"), (1.0, 0.0, None, 0.75))
    assert Stepwise(separator="; ").build().asked(row)[1] == "b; c; d; e"


@pytest.mark.parametrize("key", ["train", "weight"])
def test_an_answer_is_learnt_or_not_and_never_by_half(key):
    def read(value):
        rows = [user("a"), {**said("b"), key: value}, user("c"), said("d")]
        return Messages().build().convert({"messages": rows}).muted

    assert [read(value) for value in (False, 0, 0.0)] == [{1}] * 3
    assert [read(value) for value in (None, True, 1, 1.0)] == [set()] * 4
    for value in ("false", 0.5, [0]):
        with pytest.raises(ValueError, match=f"`{key}` of message 2 is .* neither"):
            read(value)


@pytest.mark.parametrize("call", [CALL, f"<tool_call>\n{CALL}\n</tool_call>", f"<tool_call>{CALL}</tool_call>\n" * 2])
@pytest.mark.parametrize("said", ["", "<think>\nlike [1] or {x}\n</think>\n\n"])
def test_what_is_said_before_a_call_is_kept_beside_it(call, said):
    turns = [("human", "1+1?"), ("function_call", said + call), ("observation", "2"), ("gpt", "Two.")]
    read = ShareGPT().build().convert({"conversations": [{"from": who, "value": text} for who, text in turns]})
    assert read.messages[1]["content"].strip() == said.strip()
    functions = [each["function"] for each in read.messages[1]["tool_calls"]]
    assert functions == [{"name": "add", "arguments": {"a": 1}}] * call.count("add")


def test_marks_within_the_arguments_of_a_call_are_text():
    call = '{"name": "say", "arguments": {"text": "</think> <tool_call>x</tool_call>"}}'
    row = {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": call}]}
    (called,) = ShareGPT().build().convert(row).messages[1]["tool_calls"]
    assert called["function"]["arguments"] == {"text": "</think> <tool_call>x</tool_call>"}


FORMATS = (Alpaca(history="history"), Messages(), ShareGPT(), Segments(), Text(), Preference(), Feedback(), Stepwise())
BESIDE = ("history", "tools", "prompt", "margin", "chat_template_kwargs")
ROWS = [(format, name) for format in FORMATS for name in sorted({*type(format).example, *BESIDE})]
NOTHING = (None, True, "x", "[1]", [], {}, [None], [[]], [{}], b"x", float("nan"))
ODD = (*NOTHING, 5, 1.5, [["a", "b"]], [{"role": ["x"], "content": "y"}])


@pytest.mark.parametrize(
    ("format", "name"), ROWS, ids=lambda each: each if isinstance(each, str) else type(each).__name__
)
def test_whatever_a_column_holds_the_row_is_read_or_a_bad_one(format, name):
    for odd in ODD:
        row = {**type(format).example, name: odd}
        with contextlib.suppress(ValueError):
            format.build().convert(row)
        detect([row])


def test_history_may_be_a_cell_of_a_table():
    row = {"instruction": "a", "output": "b", "history": '[["hi", "hello"]]'}
    assert [text for _, text in contents(Alpaca(history="history").build().convert(row))] == ["hi", "hello", "a", "b"]


def test_media_of_columns_stand_at_their_marks_or_before_the_first_message():
    row = {"instruction": "a <video> b", "output": "c", "videos": ["x.mp4"], "audio": "y.wav", "images": []}
    found = Alpaca().build().convert(row)
    assert found.messages[0]["content"] == "<audio>a <video> b"
    assert found.media == (Named("video", "x.mp4"), Named("audio", "y.wav"))
