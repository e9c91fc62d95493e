"""Texts as the model reads them, each with whether it is learnt: axolotl's `segments`."""

import json

import pytest
from data_cases import text_of

from gym_core import DataError
from gym_data import DatasetConfig, File
from gym_data.formats import Segments
from gym_data.formats.detect import detect
from gym_data.tokenizer import Tokenizer

PARTS = [("What is two", True), (" plus two?", False), ("\nFour.", True), (" So", False), (" says the cat.", True)]
ROW = {"segments": [{"text": text, "label": label} for text, label in PARTS]}


def build(model, path, **options):
    return DatasetConfig(sources=[File(path=path)], **options).build(tokenizer=model, rows="conversation", seed=0)


def test_each_segment_is_encoded_by_itself_and_learnt_as_its_label_says(model, write):
    tokenizer, (example,) = Tokenizer(model), build(model, write([ROW])).train
    assert detect([ROW]) == Segments()
    expected = [tokenizer.encode(text) for text, _ in PARTS]
    assert example.tokens.tolist() == [token for ids in expected for token in ids]
    learnt = [label for ids, (_, label) in zip(expected, PARTS, strict=True) for _ in ids]
    assert example.trained.tolist() == [False, *learnt[1:]]  # nothing comes before the first token
    assert build(model, write([{"segments": json.dumps(ROW["segments"])}]), format=Segments()).train[0].id


def test_special_tokens_are_text_unless_they_are_not_split(model, write):
    row = {"segments": [{"text": "a<|im_end|>", "label": False}, {"text": "b<|im_end|>", "label": True}]}
    tokenizer = Tokenizer(model)
    for split, ends in ((True, 0), (False, 2)):
        prepared = build(model, write([row]), split_special_tokens=split)
        (example,) = prepared.train
        assert (example.tokens == tokenizer.token_id("<|im_end|>")).sum() == ends
        assert text_of(tokenizer, example.tokens, example.trained) == "b<|im_end|>"


def test_they_are_cut_and_all_of_them_may_be_learnt(model, write):
    whole = build(model, write([ROW])).train[0]
    assert build(model, write([ROW]), train_on="all").train[0].trained[1:].all()
    short = build(model, write([ROW]), cutoff=3).train[0]
    assert short.tokens.tolist() == whole.tokens[:3].tolist()


@pytest.mark.parametrize(
    ("segments", "why"),
    [
        ([{"text": "a"}], "the label of segment 1 is not true or false"),
        ([{"label": True}], "the text of segment 1 is missing"),
        (["a"], "segment 1 is not an object"),
        ("{}", "holds no list of segments"),
        ([{"text": "a", "label": False}], "no segment is to be learnt"),
    ],
)
def test_what_is_no_segment_is_a_bad_row(segments, why, model, write):
    with pytest.raises(DataError, match=why):
        build(model, write([{"segments": segments}]), format=Segments())
