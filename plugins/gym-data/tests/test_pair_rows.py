"""Pairs of every shape as tokens: both sides are what the chat template writes, their answers and no more are learnt."""

from __future__ import annotations

import numpy as np
import pytest
from data_cases import chat, text_of

from gym_data import DatasetConfig, File, Named
from gym_data.templates import Qwen
from gym_data.tokenizer import Tokenizer

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}
ASKED, ANSWERED = {"role": "user", "content": "1 + 1 ?"}, {"role": "assistant", "content": "Two ."}
RESULT, GUESSED = {"role": "tool", "content": "2"}, {"role": "assistant", "content": "Four ."}
#: Rows, and the conversations of their sides with what is learnt of each.
CASES = {
    "text": (
        {"prompt": "1 + 1 ?", "chosen": "Two .", "rejected": "Four ."},
        ([ASKED, ANSWERED], "Two .<|im_end|>"),
        ([ASKED, GUESSED], "Four .<|im_end|>"),
    ),
    "a system message and earlier turns": (
        {"messages": chat("hello", "hi", "1 + 1 ?", system="s"), "chosen": ANSWERED, "rejected": GUESSED},
        ([*chat("hello", "hi", "1 + 1 ?", system="s"), ANSWERED], "Two .<|im_end|>"),
        ([*chat("hello", "hi", "1 + 1 ?", system="s"), GUESSED], "Four .<|im_end|>"),
    ),
    "a tool is called or not": (
        {"messages": [ASKED], "tools": TOOLS, "chosen": CALL, "rejected": GUESSED},
        ([ASKED, CALL], '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'),
        ([ASKED, GUESSED], "Four .<|im_end|>"),
    ),
    "answers after a call and its result": (
        {"prompt": [ASKED], "tools": TOOLS, "chosen": [CALL, RESULT, ANSWERED], "rejected": [CALL, RESULT, GUESSED]},
        ([ASKED, CALL, RESULT, ANSWERED], "Two .<|im_end|>"),
        ([ASKED, CALL, RESULT, GUESSED], "Four .<|im_end|>"),
    ),
    "conversations that part early": (
        {"chosen": [*chat("a", "b", "c"), ANSWERED], "rejected": [*chat("a", "d", "c"), ANSWERED]},
        ([*chat("a", "b", "c"), ANSWERED], "b<|im_end|>|Two .<|im_end|>"),
        ([*chat("a", "d", "c"), ANSWERED], "d<|im_end|>|Two .<|im_end|>"),
    ),
    "different prompts": (
        {"chosen": [*chat("a"), ANSWERED], "rejected": [*chat("b"), ANSWERED]},
        ([*chat("a"), ANSWERED], "Two .<|im_end|>"),
        ([*chat("b"), ANSWERED], "Two .<|im_end|>"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_both_sides_are_what_the_template_writes(model, write, name):
    row, *sides = CASES[name]
    config = DatasetConfig(sources=[File(path=write([row]))], template=Qwen())
    (pair,) = config.build(tokenizer=model, rows="preference", seed=0).train
    tokenizer = Tokenizer(model, Qwen().build())
    middle = pair.shared + pair.chosen
    assert pair.shared > 0 and not pair.trained[: pair.shared].any()
    for (messages, learnt), rest in zip(sides, (slice(pair.shared, middle), slice(middle, None)), strict=True):
        tokens = np.concatenate([pair.tokens[: pair.shared], pair.tokens[rest]])
        trained = np.concatenate([pair.trained[: pair.shared], pair.trained[rest]])
        assert tokens.tolist() == tokenizer.chat(messages, row.get("tools"))[0].tolist()
        assert text_of(tokenizer, tokens, trained) == learnt


def test_dpo_en_demo_is_read_whole(model, real_data):
    config = DatasetConfig(sources=[Named(path="dpo_en_demo")], dataset_dir=str(real_data), cutoff=100_000)
    prepared = config.build(tokenizer=model, rows="preference", seed=0)
    report = prepared.report
    assert report["rows"] == 300 and report["truncated"] == report["bad"] == 0
    assert report["examples"] + report["dropped"] == 300 and report["examples"] >= 290
    assert all(0 < pair.shared < len(pair.tokens) - pair.chosen for pair in prepared.train)


def test_a_cutoff_cuts_sides_and_drops_those_with_nothing_left(model, real_data):
    config = DatasetConfig(sources=[Named(path="dpo_en_demo")], dataset_dir=str(real_data), cutoff=256)
    report = config.build(tokenizer=model, rows="preference", seed=0).report
    (source,) = report["sources"]
    assert 0 < report["dropped"] < report["truncated"] <= 300
    assert set(source["dropped"]) <= {
        "nothing to learn within the cutoff",
        "both answers are the same within the cutoff",
        "both answers are the same",
    }
    dropping = config.model_copy(update={"overlong": "drop"}).build(tokenizer=model, rows="preference", seed=0).report
    assert dropping["truncated"] == 0 and dropping["dropped"] >= report["truncated"]
