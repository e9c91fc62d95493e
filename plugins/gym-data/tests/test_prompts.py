"""Prompts to answer: of every format, with or without an answer in the row, and with the row for whoever judges."""

import json

import pytest
from data_cases import chat

from gym_core import DataError
from gym_data import DatasetConfig, File, Named
from gym_data.tokenizer import Tokenizer

QUESTION = "What is two plus two ?"
#: the answer that whoever judges finds in column `answer`
ANSWERS = {"alpaca": "Four .", "messages with an answer": "Four .", "sharegpt": "Four .", "preference": "Four ."}
ROWS = {
    "alpaca": {"instruction": "What is two plus two ?", "input": "", "output": "Four .", "level": 3},
    "prompt alone": {"prompt": QUESTION, "solution": "4"},
    "prompt of messages": {"prompt": chat(QUESTION), "solution": "4"},
    "messages": {"messages": chat(QUESTION), "answer": 4},
    "messages with an answer": {"messages": chat(QUESTION, "Four ."), "tags": ["sum"]},
    "sharegpt": {"conversations": [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": "Four ."}]},
    "preference": {"instruction": QUESTION, "chosen": "Four .", "rejected": "Five ."},
    "feedback": {"messages": chat(QUESTION, "Four ."), "label": False},
    "question": {"question": QUESTION, "answer": "#### 4"},
}


def build(model, path, **options):
    return DatasetConfig(sources=[File(path=path)], **options).build(tokenizer=model, rows="prompt", seed=0)


@pytest.mark.parametrize("name", ROWS)
def test_a_prompt_stands_before_the_answer_and_keeps_its_row(model, write, name):
    prepared = build(model, write([ROWS[name]] * 2))
    row = ({"answer": ANSWERS[name]} if name in ANSWERS else {}) | ROWS[name]
    for prompt in prepared.train:
        assert prompt.messages == chat(QUESTION) and prompt.row == row
        text = Tokenizer(model).decode(prompt.tokens)
        assert text == f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
        assert not prompt.trained.any()
    assert build(model, write([ROWS[name]] * 2)).report["cached"]


@pytest.mark.parametrize(("chosen", "answer"), [("Four .", "Four ."), ("", None)])
def test_a_pair_with_nothing_to_compare_asks_all_the_same(model, write, chosen, answer):
    prepared = build(model, write([{"prompt": QUESTION, "chosen": chosen, "rejected": chosen}]))
    assert prepared.train[0].messages == chat(QUESTION) and prepared.train[0].row.get("answer") == answer


def test_each_prompt_has_its_own_row_whatever_the_order(model, write):
    rows = [{"prompt": f"say {number}", "number": number, "more": "ü" * number} for number in range(9)]
    prepared = build(model, write(rows), validation=3)
    both = [*prepared.train, *prepared.validation]
    assert len(prepared.validation) == 3 and sorted(one.row["number"] for one in both) == list(range(9))
    for one in both:
        assert one.messages[-1]["content"] == f"say {one.row['number']}" and one.row == rows[one.row["number"]]
        assert one.id.endswith(f":{one.row['number'] + 1}")


def test_the_system_message_and_earlier_turns_are_part_of_the_prompt(model, write):
    prepared = build(model, write([{"messages": chat("hello", "hello you", QUESTION)}]), system="a cat")
    assert [message["role"] for message in prepared.train[0].messages] == ["system", "user", "assistant", "user"]


def test_what_asks_nothing_is_refused_and_what_is_too_long_left_out(model, write):
    with pytest.raises(DataError, match="ask nothing"):
        build(model, write([{"text": "once"}]))
    with pytest.raises(DataError, match=r"row 1: .*(no messages|is empty)"):
        build(model, write([{"messages": [{"role": "assistant", "content": "Four ."}]}], "other.jsonl"))
    rows = [{"prompt": QUESTION}, {"prompt": QUESTION * 40}]
    prepared = build(model, write(rows, "long.jsonl"), cutoff=60)
    assert len(prepared.train) == 1 and prepared.report["dropped"] == 1


def test_gsm8k_is_a_set_of_prompts(model, real_data):
    config = DatasetConfig(sources=[Named(path="gsm8k_train")], dataset_dir=str(real_data), max_samples=50)
    prepared = config.build(tokenizer=model, rows="prompt", seed=0)
    first = json.loads((real_data / "gsm8k_train.jsonl").read_text().splitlines()[0])
    assert len(prepared.train) == 50 and dict(prepared.train[0].row) == first
    assert prepared.train[0].messages == [{"role": "user", "content": first["question"]}]


def test_prompts_without_a_tokenizer_are_split_as_those_of_training(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"question": "{n} + 1?", "answer": "{n + 1}", "level": {n}}}\n' for n in range(10)))
    config = DatasetConfig(sources=[File(path=str(file))], validation=3, system="Add.")
    train, held = config.prompts(seed=5)
    assert sorted(one.row["level"] for one in (*train, *held)) == list(range(10)) and len(held) == 3
    assert train[0].messages[0] == {"role": "system", "content": "Add."}
    assert train[0].messages[1]["content"] == f"{train[0].row['level']} + 1?"
    assert config.prompts(seed=5) == (train, held) != config.prompts(seed=6)
    own = config.model_copy(update={"validation": 0.0, "validation_sources": [File(path=str(file), samples=4)]})
    assert [len(part) for part in own.prompts(seed=5)] == [10, 4]
    with pytest.raises(DataError, match="takes all 10 rows"):
        config.model_copy(update={"validation": 10}).prompts(seed=5)
