"""Judged answers: the last answer of a conversation is learnt, and how it was judged comes with it."""

from __future__ import annotations

from data_cases import chat, text_of

from gym_data import DatasetConfig, File, Named
from gym_data.tokenizer import Tokenizer

ROWS = [
    {"messages": chat("hello", "hello you"), "label": True},
    {"messages": chat("hello", "hello you", "What is two plus two ?", "Four ."), "label": False},
]


def build(model, path, **options):
    return DatasetConfig(sources=[File(path=path)], **options).build(tokenizer=model, rows="feedback", seed=0)


def test_the_answer_that_was_judged_is_learnt_whatever_else_is_asked(model, write):
    for train_on in ("assistant", "all"):
        prepared = build(model, write(ROWS), train_on=train_on)
        tokenizer = Tokenizer(model)
        found = [(text_of(tokenizer, one.tokens, one.trained), one.desirable) for one in prepared.train]
        assert found == [("hello you<|im_end|>", True), ("Four .<|im_end|>", False)]
        assert build(model, write(ROWS), train_on=train_on).report["cached"]
        assert any("judged answers alone" in note for note in prepared.report["notes"]) == (train_on == "all")


def test_judgements_stay_with_their_answers_in_either_part(model, write):
    rows = [{"messages": chat("hello", f"say {number}"), "label": number % 3 == 0} for number in range(12)]
    prepared = build(model, write(rows), validation=4)
    both = [*prepared.train, *prepared.validation]
    assert len(prepared.validation) == 4
    assert {one.id: one.desirable for one in both} == {
        f"{both[0].id.rpartition(':')[0]}:{n + 1}": n % 3 == 0 for n in range(12)
    }


def test_an_answer_beyond_the_cutoff_is_left_out_and_counted(model, write):
    rows = [*ROWS, {"messages": chat("hello you " * 40, "hello"), "label": True}]
    prepared = build(model, write(rows), cutoff=60)
    assert len(prepared.train) == 2 and prepared.report["dropped"] == 1


def test_kto_en_demo_is_read(model, real_data):
    config = DatasetConfig(sources=[Named(path="kto_en_demo")], dataset_dir=str(real_data), max_samples=40)
    prepared = config.build(tokenizer=model, rows="feedback", seed=0)
    assert {one.desirable for one in prepared.train} == {True, False}
    assert all(one.trained.any() and not one.trained[0] for one in prepared.train)


def test_a_pair_is_a_good_answer_and_a_bad_one(model, write):
    rows = [{"prompt": f"hello {number}", "chosen": "Four .", "rejected": "cat"} for number in range(6)]
    prepared = build(model, write(rows), validation=2)
    tokenizer = Tokenizer(model)
    for part, count in ((prepared.train, 8), (prepared.validation, 4)):
        told = [(text_of(tokenizer, one.tokens, one.trained), one.desirable) for one in part]
        assert told.count(("Four .<|im_end|>", True)) == told.count(("cat<|im_end|>", False)) == count // 2
