"""From a configuration to examples: cutoff, masks, mixing, the cache, and data that leaves nothing."""

import json
from itertools import pairwise

import numpy as np
import pytest
from data_cases import Foreign, chat, text_of
from pydantic import ValidationError

from gym_core import DataError
from gym_data import DatasetConfig, File, Named
from gym_data.formats import Alpaca
from gym_data.tokenizer import Tokenizer


def alpaca(count, answer="it is {}"):
    return [{"instruction": f"say {i}", "input": "", "output": answer.format(i)} for i in range(count)]


def build(model, sources, rows="conversation", seed=0, **options):
    config = DatasetConfig(sources=sources if isinstance(sources, list) else [File(path=sources)], **options)
    return config.build(tokenizer=model, rows=rows, seed=seed)


def texts(model, examples):
    tokenizer = Tokenizer(model)
    return [text_of(tokenizer, example.tokens, example.trained) for example in examples]


def test_examples_are_arrays_with_a_name(model, write):
    prepared = build(model, write(alpaca(3)))
    assert len(prepared.train) == 3 and prepared.validation is None
    example = prepared.train[1]
    assert example.id.endswith("rows.jsonl:2")
    assert (example.tokens.dtype, example.trained.dtype) == (np.int32, np.bool_)
    assert prepared.train.lengths.tolist() == [len(one.tokens) for one in prepared.train]
    assert texts(model, prepared.train) == [f"it is {i}<|im_end|>" for i in range(3)]
    assert prepared.train[-1].id == prepared.train[2].id
    with pytest.raises(IndexError):
        prepared.train[3]


def test_the_second_time_reads_the_cache_and_every_option_has_its_own(model, write):
    path = write(alpaca(3))
    first, second = build(model, path), build(model, path)
    assert (first.report["cached"], second.report["cached"]) == (False, True)
    assert first.key == second.key == build(model, path, seed=9).key
    others = [
        build(model, path, **options).key
        for options in (
            {"cutoff": 100},
            {"train_on": "all"},
            {"system": "s"},
            {"validation": 1},
            {"variables": {"a": "b"}},
        )
    ]
    others.append(build(model, write([*alpaca(3), *alpaca(1)], "more.jsonl")).key)
    assert len({first.key, *others}) == len(others) + 1
    assert build(model, path, rebuild=True).report["cached"] is False


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the dataset holds no rows"),
        ("\n\n", "the dataset holds no rows"),
        ('{"x": 1}', "no known row format has the columns x"),
        ('{"frage": "1", "antwort": "2"}', r"data: \{format: \{name: alpaca, prompt: frage, response: antwort\}\}"),
        ('{"id": "1", "chat": [{"role": "a"}]}', r"data: \{format: \{name: messages, messages: chat\}\}"),
        ('{"dialog": [{"from": "a"}]}', r"data: \{format: \{name: sharegpt, messages: dialog\}\}"),
        ('{"instruction": "a", "output": ""}', r"row 1: the answer \(column `output`\) is empty"),
        ('{"text": "a"}', "its rows are of shape `text`"),
        ('{"prompt": "a", "chosen": "b", "rejected": "c"}', "its rows are of shape `preference`"),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": false}]}',
            "none of its 1 rows can be learnt from",
        ),
    ],
)
def test_data_that_cannot_be_trained_on_is_an_error_of_four_lines(content, message, model, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        build(model, str(path))
    assert caught.value.code == 4
    assert 1 <= str(caught.value).count("\n") <= 3


def test_bad_rows_are_skipped_and_counted_when_asked(model, write):
    rows = [*alpaca(2), {"instruction": "x", "output": " "}, *alpaca(1)]
    prepared = build(model, write(rows), bad_rows="skip")
    assert len(prepared.train) == 3
    assert prepared.report["sources"][0]["bad"] == {"the answer (column `output`) is empty": 1}
    assert [example.id.rpartition(":")[2] for example in prepared.train] == ["1", "2", "4"]
    with pytest.raises(DataError, match="none of its 1 rows"):
        build(model, write([rows[2]], "only.jsonl"), bad_rows="skip")


def test_what_the_template_refuses_is_a_bad_row(with_template, write):
    path = with_template("{{ raise_exception('no') }}")
    with pytest.raises(DataError, match="row 1: the chat template refused it: no"):
        build(path, write(alpaca(1)))


def test_overlong_examples_lose_their_end_or_are_dropped(model, write):
    path = write([*alpaca(1), *alpaca(1, "a very long answer " * 50), {"instruction": "x " * 200, "output": "y"}])
    cut = build(model, path, cutoff=60)
    assert cut.train.lengths.max() == 60 and len(cut.train) == 2
    assert cut.report["truncated"] == 2
    assert cut.report["sources"][0]["dropped"] == {"nothing to learn within the cutoff": 1}
    dropped = build(model, path, cutoff=60, overlong="drop")
    assert len(dropped.train) == 1 and dropped.report["dropped"] == 2
    with pytest.raises(DataError, match="none of its 3 rows can be learnt from"):
        build(model, path, cutoff=3)


def test_train_on_answers_the_last_answer_or_all(model, write):
    path = write([{"messages": chat("a", "one", "b", "two")}])
    assert texts(model, build(model, path).train) == ["one<|im_end|>|two<|im_end|>"]
    assert texts(model, build(model, path, train_on="last").train) == ["two<|im_end|>"]
    everything = build(model, path, train_on="all").train[0]
    assert everything.trained.sum() == len(everything.tokens) - 1


def test_system_and_variables(model, write):
    path = write([{"instruction": "who? {{other}}", "output": "I am {{name}} by {{ author }}."}])
    tokenizer = Tokenizer(model)
    example = build(model, path, variables={"name": "Gym", "author": "us"}, system="Be {{kind}}.").train[0]
    text = tokenizer.decode(example.tokens)
    assert "I am Gym by us." in text and "{{other}}" in text and "<|im_start|>system\nBe {{kind}}.<|im_end|>" in text


def test_max_samples_and_samples_count_for_each_source(model, write):
    a, b = write(alpaca(10), "a.jsonl"), write(alpaca(10, "no {}"), "b.jsonl")
    both = build(model, [File(path=a), File(path=b)], max_samples=3)
    assert len(both.train) == 6
    drawn = build(model, [File(path=a, samples=25), File(path=b)])
    assert len(drawn.train) == 35 and len({example.id for example in drawn.train}) == 20
    assert len(build(model, [File(path=a, samples=4)], seed=1).train) == 4


@pytest.mark.parametrize("split", ["blocks", "documents"])
def test_more_samples_than_rows_never_put_a_document_beside_itself(split, model, write):
    path = write([{"text": f"{name} "} for name in "abcd"])
    drawn = build(model, [File(path=path, samples=11)], rows="text", cutoff=1000, split=split).train
    tokenizer = Tokenizer(model)
    text = "".join(tokenizer.decode(example.tokens) for example in drawn).replace("<|im_end|>", "")
    came = text.split()
    assert len(came) == 11 and all(one != other for one, other in pairwise(came)), came
    assert sorted(came[:4]) == sorted(came[4:8]) == list("abcd")


def test_duplicates_are_counted_and_stay_on_one_side_of_the_split(model, write):
    path = write(alpaca(10) * 3)
    prepared = build(model, path, validation=0.2)
    assert prepared.report["duplicates"] == 20
    sides = [{example.tokens.tobytes() for example in side} for side in (prepared.train, prepared.validation)]
    assert not sides[0] & sides[1]
    assert len(prepared.train) + len(prepared.validation) == 30
    with pytest.raises(DataError, match="validation takes all 30 examples"):
        build(model, path, validation=30)


def test_a_source_that_is_measured_apart_and_has_nothing_held_out_is_told(model, write):
    sources = [File(path=write(alpaca(3), "first.jsonl")), File(path=write(alpaca(3, "so {}"), "second.jsonl"))]
    for validation_apart in (True, False):
        found = build(model, sources, validation=1, validation_apart=validation_apart)
        told = [note for note in found.report["notes"] if "nothing of it is for validation" in note]
        assert len(told) == validation_apart
        assert not any(note.startswith(name) for name in found.validation_parts for note in told)


def test_validation_may_have_sources_of_its_own(model, write):
    train, own = write(alpaca(3)), write(alpaca(4, "so {}"), "own.jsonl")
    prepared = build(model, train, validation_sources=[File(path=own)])
    assert texts(model, prepared.train) == [f"it is {i}<|im_end|>" for i in range(3)]
    assert texts(model, prepared.validation) == [f"so {i}<|im_end|>" for i in range(4)]
    assert (prepared.report["examples"], prepared.report["validation"], prepared.report["notes"]) == (3, 4, [])
    assert len(build(model, train, validation_sources=[File(path=own)], max_samples=2).validation) == 2
    pairs = write([{"prompt": "a", "chosen": "b", "rejected": "c"}], "pairs.jsonl")
    with pytest.raises(DataError, match=r"name others in `data\.validation_sources`"):
        build(model, train, validation_sources=[File(path=pairs)])
    same = build(model, train, validation_sources=[File(path=train)])
    assert same.key != build(model, [File(path=train)] * 2).key
    assert same.report["notes"] == ["3 of 3 examples for validation are trained on too"]
    with pytest.raises(DataError, match="none of its 1 rows") as caught:
        build(
            model,
            train,
            validation_sources=[File(path=write([{**alpaca(1)[0], "output": ""}], "bad.jsonl"))],
            bad_rows="skip",
        )
    assert "bad.jsonl" in str(caught.value)
    with pytest.raises(DataError) as caught:
        DatasetConfig(sources=[File(path=train)], validation_sources=[File(path="none.jsonl")]).check()
    assert caught.value.problems[0].key == "data.validation_sources[0]"


def test_text_is_cut_into_blocks_of_one_size(model, write):
    rows = [{"text": "the cat sat on a mat. " * 5}, {"text": "hello <|im_end|> you"}]
    tokenizer = Tokenizer(model)
    blocks = build(model, write(rows), rows="text", cutoff=16).train
    assert set(blocks.lengths[:-1]) == {16}
    joined = np.concatenate([block.tokens for block in blocks])
    assert joined.tolist() == [token for row in rows for token in [*tokenizer.encode(row["text"]), tokenizer.eos_id]]
    assert all(block.trained[1:].all() and not block.trained[0] for block in blocks)
    documents = build(model, write(rows, "b.jsonl"), rows="text", cutoff=16, split="documents")
    assert len(documents.train) == 2 and documents.report["truncated"] == 1


def test_blocks_do_not_depend_on_how_documents_are_batched(model, write, monkeypatch):
    rows = [{"text": f"document {i} " * (i % 7 + 1)} for i in range(50)]
    path = write(rows)
    whole = [block.tokens.tolist() for block in build(model, path, rows="text", cutoff=32).train]
    monkeypatch.setattr("gym_data.encodings.document_encoding.BATCH", 3)
    assert [block.tokens.tolist() for block in build(model, path, rows="text", cutoff=32, rebuild=True).train] == whole


def test_a_source_of_another_package(model):
    prepared = build(model, [Foreign(count=3)])
    assert texts(model, prepared.train) == [f"{number}<|im_end|>" for number in range(3)]
    assert prepared.train[0].id == "Foreign:1"


def test_the_configuration_is_checked():
    for options in (
        {"sources": []},
        {"validation": 1.5},
        {"validation": 2, "validation_sources": [File(path="y")]},
        {"mix_weights": [1.0]},
        {"cutoff": 0},
        {"mix": "interleave_once", "mix_weights": [1.0, 2.0]},
        {"mix": "interleave_once", "mix_weights": [1.0], "validation_sources": [File(path="y")] * 2},
    ):
        with pytest.raises(ValidationError):
            DatasetConfig(**({"sources": [File(path="x")]} | options))


def test_a_registered_name_with_its_own_columns(model, tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps({"q": "one", "a": "two"}))
    entry = {"file_name": "q.jsonl", "columns": {"prompt": "q", "response": "a"}}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": entry}))
    assert len(build(model, [Named(path="mine")], dataset_dir=str(tmp_path)).train) == 1
    said = build(model, [File(path=str(tmp_path / "q.jsonl"), read_as=Alpaca(prompt="q", query=None, response="a"))])
    assert len(said.train) == 1


def test_rendered_chats_as_text_are_said_and_read_as_tokens_where_that_is_asked(model, write):
    tokenizer = Tokenizer(model)
    path = write([{"text": "<|im_start|>user\nhello<|im_end|>"}, {"text": "hello"}])
    split = build(model, path, rows="text", split="documents")
    assert tokenizer.eos_id not in split.train[0].tokens[:-1]
    assert any("1 rows spell out special tokens" in note for note in split.report["notes"])
    whole = build(model, path, rows="text", split="documents", split_special_tokens=False)
    assert whole.train[0].tokens.tolist() == Tokenizer(model, split_special_tokens=False).encode(
        "<|im_start|>user\nhello<|im_end|>"
    )
    assert whole.train[1].tokens[-1] == tokenizer.eos_id and whole.report["notes"] == []


def test_a_shape_that_is_none_is_refused(model, write):
    with pytest.raises(DataError, match="no rows of shape `colours`"):
        build(model, write(alpaca(1)), rows="colours")


def test_conversations_are_text_too_as_their_template_writes_them(model, write):
    messages = [{"role": "user", "content": "say a"}, {"role": "assistant", "content": "a"}]
    path = write([{"messages": messages}])
    as_text, as_chat = (build(model, path, rows=rows).train[0] for rows in ("text", "conversation"))
    assert as_text.tokens.tolist() == as_chat.tokens.tolist()
    assert as_text.trained.tolist() == [False] + [True] * (len(as_text.tokens) - 1)
