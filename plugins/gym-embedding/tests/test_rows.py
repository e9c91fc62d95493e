"""From rows of texts to tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from related_rows import closing
from transformers import AutoTokenizer

from gym_core import DataError, load_recipe
from gym_embedding.format_reader import RelatedTextsReader, detect
from gym_embedding.formats import RelatedTextsFormat
from gym_embedding.shape import RELATED_TEXTS
from gym_testkit.bench import Bench


def read(row: dict[str, Any], **options: Any) -> tuple[tuple[str, ...], float | None]:
    """Return the texts of a row, and its score."""
    found = RelatedTextsReader(RelatedTextsFormat(**options)).convert(row)
    return found.texts, found.score


def test_columns_are_told_by_their_names() -> None:
    rows = [{"query": "q", "pos": ["p"], "neg": ["m", "n"]}]
    found = detect(rows)
    assert found is not None
    assert RelatedTextsReader(found).convert(rows[0]).texts == ("q", "p", "m", "n")
    scored = detect([{"sentence1": "a", "sentence2": "b", "label": 0.5}])
    assert scored is not None and (scored.anchor, scored.positive, scored.score) == ("sentence1", "sentence2", "label")
    worded = detect([{"sentence1": "a", "sentence2": "b", "label": "entailment"}])
    assert (
        worded is not None and worded.score == "label"
    )  # each is refused: it may say that they do not belong together
    some = detect([{"anchor": "a", "positive": "b", "score": None}, {"anchor": "a", "positive": "b", "score": "3.5"}])
    assert some is not None and some.score == "score"
    tagged = detect([{"anchor": "a", "positive": "b", "label": "sports"}])
    assert tagged is not None and tagged.score is None
    assert detect([{"query": "a", "answer": "b"}]) is not None
    assert detect([{"prompt": "a", "completion": "b"}]) is None


def test_negatives_stand_in_columns_or_lists() -> None:
    row = {"anchor": "a", "positive": "p", "negative_1": "x", "negative_2": None, "negatives": ["y", "z"]}
    assert read(row) == (("a", "p", "x", "y", "z"), None)
    assert read(row, negatives=("negative_1",)) == (("a", "p", "x"), None)


def test_what_is_said_of_negatives_is_no_negative() -> None:
    """As datasets of FlagEmbedding and of mined negatives have it; and tables fill up where a row has fewer."""
    row = {"query": "q", "pos": ["p"], "neg": ["x", None], "pos_scores": [0.9], "neg_scores": [0.1, 0.2]}
    assert read(row, anchor="query", positive="pos") == (("q", "p", "x"), None)
    mined = {"anchor": "a", "positive": "p", "negative": "x", "negative_id": "7", "negative_2": "", "negotiator": "me"}
    assert read(mined) == (("a", "p", "x"), None)


def test_a_score_may_be_written_as_text() -> None:
    assert read({"anchor": "a", "positive": "p", "score": "3.8"}) == (("a", "p"), 3.8)


def test_prompts_stand_before_texts() -> None:
    row = {"anchor": "a", "positive": "p", "negative": "n", "instruction": "Find it."}
    assert read(row, document_prompt="doc: ")[0] == ("Instruct: Find it.\nQuery:a", "doc: p", "doc: n")
    assert read(row, instruction=None, query_prompt="query: ")[0] == ("query: a", "p", "n")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"anchor": " ", "positive": "p"}, "the anchor .* is empty"),
        ({"anchor": "a"}, "the positive .* is missing"),
        ({"anchor": "a", "positive": ["p", "q"]}, "2 positives"),
        ({"anchor": "a", "positive": "p", "negative": " "}, "a negative is empty"),
        ({"anchor": "a", "positive": "p", "negatives": [1]}, "a negative is not text"),
        ({"anchor": "a", "positive": "p", "score": "high"}, "holds no number but 'high'"),
        ({"anchor": "a", "positive": "p", "score": True}, "holds no number"),
        ({"anchor": "a", "positive": "p", "score": 10**400}, "holds no number"),
        ({"anchor": "a", "positive": "p", "score": float("nan")}, "holds no number"),
        ({"anchor": "a", "positive": "p", "score": 1, "negative": "n"}, "a score is of two texts"),
    ],
)
def test_rows_that_say_nothing_are_refused(row: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(row)


def test_a_shown_row_is_read() -> None:
    assert read(dict(RELATED_TEXTS.shown("q", "a", "w"))) == (("q", "a", "w"), None)


@pytest.mark.parametrize("closed", [False, True])
def test_tokens_are_those_of_the_tokenizer_when_it_is_called(bench: Bench, tmp_path: Path, closed: bool) -> None:
    """Cut off, a text keeps what ends it."""
    model = closing(bench, tmp_path) if closed else bench.model()
    texts = ["anchor of some length", "ü", "a negative"]
    file = bench.file([{"anchor": texts[0], "positive": texts[1], "negative": texts[2]}])
    tokenizer = AutoTokenizer.from_pretrained(model)
    for cutoff in (64, 9):
        recipe = load_recipe(bench.recipe("embedding") | {"data": {"sources": str(file), "cutoff": cutoff}})
        assert recipe.data is not None
        rows = "gym_embedding.shape:RELATED_TEXTS"
        sample = recipe.data.build(tokenizer=model, rows=rows, seed=0).train[0]
        wanted = [tokenizer(text, truncation=True, max_length=cutoff)["input_ids"] for text in texts]
        assert [sample.tokens[where].tolist() for _, where in sample.parts] == wanted
        assert [name for name, _ in sample.parts] == ["anchor", "positive", "negative"]


def test_rows_of_another_shape_are_refused_by_name(bench: Bench) -> None:
    with pytest.raises(DataError, match=r"no known row format(.|\n)*related-texts, anchor: question"):
        bench.run(bench.recipe("embedding") | {"data": str(bench.file([{"ask": "a", "tell": "b"}]))})
