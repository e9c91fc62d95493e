"""Pairs as tokens: what both sides begin with stands once, and the answers of each side are learnt."""

from __future__ import annotations

import pytest
from data_cases import UNMARKED, chat, text_of

from gym_core import DataError
from gym_data import DatasetConfig, File, Named
from gym_data.report import left_out
from gym_data.tokenizer import Tokenizer


def build(model, path, **options):
    return DatasetConfig(sources=[File(path=path)], **options).build(tokenizer=model, rows="preference", seed=0)


def sides(model, pair):
    """Return the text of what is shared, and for each side its text after that and what of it is learnt."""
    tokenizer, middle = Tokenizer(model), pair.shared + pair.chosen
    shared, chosen, rejected = slice(pair.shared), slice(pair.shared, middle), slice(middle, None)
    told = [
        (tokenizer.decode(pair.tokens[side]), text_of(tokenizer, pair.tokens[side], pair.trained[side]))
        for side in (chosen, rejected)
    ]
    assert not pair.trained[shared].any()
    return tokenizer.decode(pair.tokens[shared]), told


def test_the_prompt_stands_once_and_both_answers_behind_it(model, write):
    prepared = build(model, write([{"prompt": "hello", "chosen": "Four .", "rejected": "two plus two"}]))
    shared, told = sides(model, prepared.train[0])
    assert shared == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert told == [
        ("Four .<|im_end|>\n", "Four .<|im_end|>"),
        ("two plus two<|im_end|>\n", "two plus two<|im_end|>"),
    ]
    assert prepared.train.lengths.tolist() == [len(prepared.train[0].tokens)]


def test_what_answers_have_in_common_belongs_to_each(model, write):
    """Their log-probabilities count for both, so answers are never shared."""
    prepared = build(model, write([{"prompt": "hello", "chosen": "you said hello", "rejected": "you said mat"}]))
    _, told = sides(model, prepared.train[0])
    assert [learnt for _, learnt in told] == ["you said hello<|im_end|>", "you said mat<|im_end|>"]


@pytest.mark.parametrize("marked", [True, False])
def test_sides_that_part_early_are_learnt_from_where_they_part(model, with_template, write, marked):
    path = model if marked else with_template(UNMARKED)
    row = {
        "chosen": chat("hello", "hello to you", "What is two plus two ?", "Four .", "you sat", "on a mat"),
        "rejected": chat("hello", "hello to you", "What is two plus two ?", "cat", "and ?", "dog"),
    }
    shared, told = sides(path, build(path, write([row])).train[0])
    assert shared.endswith("What is two plus two ?<|im_end|>\n<|im_start|>assistant\n")
    assert [learnt for _, learnt in told] == ["Four .<|im_end|>|on a mat<|im_end|>", "cat<|im_end|>|dog<|im_end|>"]
    _, last = sides(path, build(path, write([row]), train_on="last").train[0])
    assert [learnt for _, learnt in last] == ["on a mat<|im_end|>", "dog<|im_end|>"]


def test_each_side_may_have_a_prompt_of_its_own(model, write):
    row = {"chosen": chat("two plus two ?", "Four ."), "rejected": chat("two plus a ?", "Four .")}
    shared, told = sides(model, build(model, write([row])).train[0])
    assert shared.startswith("<|im_start|>user\ntwo plus") and "assistant" not in shared
    assert [learnt for _, learnt in told] == ["Four .<|im_end|>"] * 2
    assert told[0][0] != told[1][0]


def test_a_prompt_column_and_messages_that_continue_it(model, write):
    row = {"prompt": chat("hello"), "chosen": chat("", "Four .")[1:], "rejected": chat("", "cat")[1:]}
    _, told = sides(model, build(model, write([row])).train[0])
    assert [learnt for _, learnt in told] == ["Four .<|im_end|>", "cat<|im_end|>"]


def test_messages_behind_a_prompt_that_are_not_to_be_learnt_are_read_only(model, write):
    row = {
        "prompt": chat("hello"),
        "chosen": [{"role": "assistant", "content": "cat", "train": False}, *chat("hello", "Four .")],
        "rejected": [{"role": "assistant", "content": "dog"}, *chat("hello", "mat")],
    }
    _, told = sides(model, build(model, write([row])).train[0])
    assert [learnt for _, learnt in told] == ["Four .<|im_end|>", "dog<|im_end|>|mat<|im_end|>"]


def test_an_empty_list_of_messages_is_an_empty_answer(model, write):
    rows = [
        {"prompt": "hello", "chosen": "Four .", "rejected": []},
        {"prompt": "hello", "chosen": "Four .", "rejected": "cat"},
    ]
    assert build(model, write(rows)).report["sources"][0]["dropped"] == {"an answer is empty": 1}


def test_tools_are_shown_with_whole_conversations(with_template, write):
    shows = "{% if tools %}{{ tools[0].function.name + '\\n' }}{% endif %}" + UNMARKED
    model = with_template(shows)
    tool = {"type": "function", "function": {"name": "plus", "parameters": {}}}
    row = {"tools": [tool], "chosen": chat("hello", "Four ."), "rejected": chat("hello", "cat")}
    shared, _ = sides(model, build(model, write([row])).train[0])
    assert shared.startswith("plus\n")


def test_long_sides_are_cut_and_counted(model, write):
    rows = [
        {"prompt": "hello", "chosen": "cat " * 30, "rejected": "mat"},
        {"prompt": "hello", "chosen": "cat " * 30 + "mat", "rejected": "cat " * 30 + "hello"},
        {"prompt": "hello " * 40, "chosen": "cat", "rejected": "mat"},
        {"prompt": "hello", "chosen": "cat", "rejected": "mat"},
    ]
    prepared = build(model, write(rows), cutoff=24)
    assert [one.id.rpartition(":")[2] for one in prepared.train] == ["1", "4"]
    cut = prepared.train[0]
    assert cut.shared + cut.chosen == 24 and len(cut.tokens) - 24 < cut.chosen
    assert (prepared.report["truncated"], prepared.report["dropped"]) == (3, 2)
    reasons = prepared.report["sources"][0]["dropped"]
    assert reasons == {"both answers are the same within the cutoff": 1, "nothing to learn within the cutoff": 1}
    told = "both answers are the same within the cutoff (1), nothing to learn within the cutoff (1)"
    assert left_out(prepared.report) == f"left out of 4 rows: {told}"
    assert left_out(build(model, write(rows[3:], "short.jsonl")).report) == ""
    same, empty = {**rows[3], "rejected": "cat"}, {**rows[3], "chosen": ""}
    many = build(model, write([*rows, same, empty], "many.jsonl"), cutoff=24).report
    assert left_out(many).endswith(", for other reasons (1)")
    assert build(model, write(rows), cutoff=24, overlong="drop").report["dropped"] == 3


def test_a_template_that_changes_earlier_answers_is_refused(with_template, write):
    hides = UNMARKED.replace("m.content +", "(m.content if loop.last or m.role == 'user' else 'hello') +")
    model = with_template(hides)
    row = {"chosen": chat("a", "one", "b", "two"), "rejected": chat("a", "cat", "b", "dog")}
    with pytest.raises(DataError, match="shows earlier answers differently; use `train_on: last`"):
        build(model, write([row]))
    assert len(build(model, write([row]), train_on="last").train) == 1


def test_dpo_en_demo_is_read(model, real_data):
    config = DatasetConfig(sources=[Named(path="dpo_en_demo")], dataset_dir=str(real_data), max_samples=20, cutoff=4096)
    prepared = config.build(tokenizer=model, rows="preference", seed=0)
    assert len(prepared.train) == 20
    assert all(pair.shared > 0 and pair.trained[pair.shared] for pair in prepared.train)
