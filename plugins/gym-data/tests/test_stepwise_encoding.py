"""Answers judged step by step: a prompt as the model meets it, then the steps, each learnt at the token that ends it."""

from __future__ import annotations

import numpy as np
import pytest
from data_cases import chat

from gym_core import DataError
from gym_data import DatasetConfig, File
from gym_data.tokenizer import Tokenizer

ROW = {"prompt": "What is two plus two ?", "completions": ["two plus two is", "Four ."], "labels": [True, False]}


def build(model, path, **options):
    return DatasetConfig(sources=[File(path=path)], **options).build(tokenizer=model, rows="stepwise", seed=0)


def test_steps_follow_the_prompt_and_are_learnt_where_they_end(model, write):
    tokenizer, (example,) = Tokenizer(model), build(model, write([ROW])).train
    prompt, _ = tokenizer.chat(chat(ROW["prompt"]), generation_prompt=True)
    assert example.tokens[: len(prompt)].tolist() == prompt.tolist()
    assert tokenizer.decode(example.tokens[len(prompt) :]) == "two plus two is\nFour .\n"
    ends = np.flatnonzero(example.trained)
    assert [tokenizer.decode(example.tokens[len(prompt) : end + 1]) for end in ends] == [
        "two plus two is\n",
        "two plus two is\nFour .\n",
    ]
    assert example.labels == [1.0, 0.0] and example.judgement == "steps 1, 0"


def test_a_step_that_nobody_judged_is_read_only(model, write):
    row = ROW | {"completions": ["a", "b", "c"], "labels": [None, 0.5, True]}
    (example,) = build(model, write([row])).train
    assert example.labels == [0.5, 1.0] and int(example.trained.sum()) == 2


def test_steps_beyond_the_cutoff_are_left_out_with_their_labels(model, write):
    whole = build(model, write([ROW])).train[0]
    rows = [ROW, ROW | {"labels": [None, True]}]
    prepared = build(model, write(rows), cutoff=len(whole.tokens) - 1)
    assert [example.labels for example in prepared.train] == [[1.0]]
    assert prepared.report["truncated"] == 2
    assert prepared.report["notes"] == ["there are no steps judged wrong: nothing tells good from bad"]
    assert prepared.report["sources"][0]["dropped"] == {"nothing to learn within the cutoff": 1}


def test_special_tokens_in_a_step_are_text(model, write):
    plain = build(model, write([ROW])).train[0]
    hostile = build(model, write([ROW | {"completions": ["a <|im_end|>", "b"]}])).train[0]
    tokenizer = Tokenizer(model)
    ends = [int((example.tokens == tokenizer.token_id("<|im_end|>")).sum()) for example in (plain, hostile)]
    assert ends[0] == ends[1]
    assert "a <|im_end|>\nb\n" in tokenizer.decode(hostile.tokens)


def test_no_token_holds_parts_of_two_steps(model):
    tokenizer = Tokenizer(model)
    tokens, ends = tokenizer.steps(chat("hello"), None, ["two", "plus", "two"], " ")
    prompt, _ = tokenizer.chat(chat("hello"), generation_prompt=True)
    starts = [len(prompt), *(ends[:-1] + 1)]
    steps = [tokenizer.decode(tokens[start : end + 1]) for start, end in zip(starts, ends, strict=True)]
    assert steps == ["two ", "plus ", "two "]
    assert tokenizer.steps(chat("hello"), None, [], " ")[0].tolist() == prompt.tolist()


def test_bad_rows_stop_and_rows_that_nobody_judged_are_left_out(model, write):
    with pytest.raises(DataError, match="row 2: there are 2 steps and 1 labels"):
        build(model, write([ROW, ROW | {"labels": [True]}]))
    with pytest.raises(DataError, match="row 1: step 2 is empty"):
        build(model, write([ROW | {"completions": ["a", ""]}]))
    prepared = build(model, write([ROW, ROW | {"labels": [None, None]}]))
    assert prepared.report["sources"][0]["dropped"] == {"no step is judged": 1}
    assert prepared.report["sources"][0]["noticed"] == {"steps judged right": 1, "steps judged wrong": 1}
    right = build(model, write([ROW | {"labels": [True, True]}]))
    assert right.report["notes"] == ["there are no steps judged wrong: nothing tells good from bad"]
