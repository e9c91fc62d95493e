"""Rows that are read window by window: what a window holds, how little is read for it, and where it can begin again."""

import gc
import json
import weakref
from collections.abc import Iterator
from itertools import count, islice, takewhile
from pathlib import Path
from typing import ClassVar

import datasets
import numpy as np
import pytest
from data_cases import chat
from pydantic import ValidationError

from gym_core import DataError
from gym_data import DatasetConfig, File, Hub, Named, Source
from gym_data.kinds import DataAlgorithm


class Endless(Source):
    """Rows without an end, which count how many of them were read."""

    target: ClassVar[str] = "test_streaming:EndlessRows"
    format: ClassVar[str] = "messages"
    read: ClassVar[list[int]] = []


class EndlessRows:
    def __init__(self, config: Endless) -> None:
        self.config = config

    def rows(self) -> Iterator[dict]:
        for number in count():
            self.config.read.append(number)
            yield {"messages": chat("say", str(number))}

    def fingerprint(self) -> str:
        raise AssertionError("it has no end")


@pytest.fixture
def endless(monkeypatch):
    """The source, found by this module's name."""
    import sys

    monkeypatch.setitem(sys.modules, "test_streaming", sys.modules[__name__])
    Endless.read.clear()
    return Endless()


def rows(first, number):
    return [{"instruction": f"say {i}", "output": f"it is {i}"} for i in range(first, first + number)]


def build(model, sources, shape="conversation", seed=0, **options):
    config = DatasetConfig(sources=sources, **options)
    return config.build(tokenizer=model, rows=shape, seed=seed)


def content(examples):
    return [(example.id, example.tokens.tolist(), example.trained.tolist()) for example in examples]


def passed(stream, passes=1):
    """The windows of so many passes."""
    return [*takewhile(lambda window: window.epoch < passes, stream.windows())]


@pytest.mark.parametrize("mix", ["concat", "interleave_under", "interleave_over", "interleave_once"])
@pytest.mark.parametrize("shape", ["conversation", "preference"])
def test_a_pass_holds_what_a_prepared_dataset_does(mix, shape, model, write):
    one, other = rows(0, 25), rows(25, 8)
    if shape == "preference":
        one, other = ([{"prompt": row["instruction"], "chosen": row["output"], "rejected": "no"} for row in part]
                      for part in (one, other))  # fmt: skip
    sources = [File(path=write(one, "one.jsonl")), File(path=write(other, "other.jsonl"))]
    weights = None if mix == "concat" else [2.0, 1.0]
    whole = build(model, sources, shape, mix=mix, mix_weights=weights).train
    streamed = build(model, sources, shape, mix=mix, mix_weights=weights, streaming=True, buffer_size=10)
    windows = passed(streamed.stream, 2)
    each = len(windows) // 2
    assert [window.last for window in windows] == ([False] * (each - 1) + [True]) * 2
    assert [window.number for window in windows] == [*range(2 * each)]
    for half in (windows[:each], windows[each:]):
        found = [example for window in half for example in window.examples]
        assert sorted(content(found)) == sorted(content(whole))
    assert content(streamed.train) == content(windows[0].examples)


def test_rows_without_an_end_are_read_as_far_as_they_are_needed(endless, model):
    built = build(model, [endless], streaming=True, buffer_size=8)
    Endless.read.clear()
    windows = built.stream.windows()
    kept = weakref.ref(next(windows).examples)
    assert len(Endless.read) == 9, "a window, and a look at whether more follows"
    for number in (1, 2, 3):
        window = next(windows)
        assert (window.number, len(window.examples), max(Endless.read)) == (number, 8, 8 * (number + 1))
    gc.collect()
    assert kept() is None, "a window that is over is not kept"


def test_a_stream_begins_again_at_any_window(endless, model):
    stream = build(model, [endless], streaming=True, buffer_size=5).stream
    first = [*islice(stream.windows(), 6)]
    for at in (0, 2, 5):
        state = json.loads(json.dumps(first[at].state))
        again = [*islice(stream.windows(state), 6 - at)]
        assert [content(each.examples) for each in again] == [content(each.examples) for each in first[at:]]
        assert [each.state for each in again] == [each.state for each in first[at:]], "counts are those of one run"


def test_a_window_that_is_another_by_now_is_an_error(model, write):
    path = write(rows(0, 12))
    options = {"streaming": True, "buffer_size": 5}
    state = passed(build(model, [File(path=path)], **options).stream)[1].state
    write([*rows(0, 6), *rows(90, 1), *rows(7, 5)])
    with pytest.raises(DataError, match="the window that begins after 5 rows is another"):
        next(build(model, [File(path=path)], **options).stream.windows(state))


def test_the_first_rows_are_held_out_and_so_are_their_equals(model, write):
    path = write([*rows(0, 20), *rows(1, 1)])
    built = build(model, [File(path=path)], streaming=True, buffer_size=6, validation=3)
    held = {tuple(example.tokens) for example in built.validation}
    learnt = [tuple(example.tokens) for window in passed(built.stream, 2) for example in window.examples]
    assert len(held) == built.report["validation"] == 3 and len(learnt) == 2 * 17 and not held & set(learnt)
    reasons = built.report["sources"][0]["dropped"]
    assert reasons["held out for evaluation"] == 2, "once in each pass"


@pytest.mark.parametrize("aside", [False, True], ids=["the first rows", "sources of their own"])
def test_what_is_held_out_names_a_stream_too(model, write, aside):
    """A run that goes on would else compare its best checkpoint with figures of other rows."""
    held_out = {"validation_sources": [File(path=write(rows(50, 4), "aside.jsonl"))]} if aside else {"validation": 2}
    path = write(rows(0, 9))

    def named():
        return build(model, [File(path=path)], streaming=True, buffer_size=4, **held_out).fingerprint

    before = named()
    write([*rows(0, 8), *rows(70, 1)])
    assert named() == before, "rows to train on are compared window by window"
    write(rows(60, 4), "aside.jsonl") if aside else write([*rows(60, 1), *rows(1, 8)])
    assert named() != before


def test_validation_sources_are_read_whole(model, write):
    sources = [File(path=write(rows(0, 9)))]
    aside = [File(path=write(rows(50, 4), "aside.jsonl"))]
    built = build(model, sources, streaming=True, buffer_size=4, validation_sources=aside)
    assert content(built.validation) == content(build(model, aside).train)


def test_bad_rows_are_counted_over_all_windows_or_stop(model, write):
    bad = [{"instruction": "x", "output": ""}]
    path = write([*rows(0, 7), *bad, *rows(7, 7), *bad * 8])
    built = build(model, [File(path=path)], streaming=True, buffer_size=4, bad_rows="skip")
    windows = passed(built.stream)
    assert sum(len(window.examples) for window in windows) == 14
    assert built.report["bad"] == 9 and built.report["rows"] == 23 + 4, "a window of the next pass was read too"
    stopping = build(model, [File(path=path)], streaming=True, buffer_size=4)
    with pytest.raises(DataError, match="row 8: the answer"):
        passed(stopping.stream)
    with pytest.raises(DataError, match="its rows hold nothing to learn from"):
        build(model, [File(path=write(bad * 9))], streaming=True, buffer_size=4, bad_rows="skip")


def test_plain_text_is_joined_within_a_window(model, write):
    texts = [{"text": f"the cat sat on mat {number} and said hello"} for number in range(12)]
    built = build(
        model, [File(path=write(texts))], "text", streaming=True, buffer_size=6, cutoff=16, mix="interleave_under"
    )
    windows = passed(built.stream)
    assert len(windows) == 2 and all(set(window.examples.lengths[:-1]) == {16} for window in windows)
    whole = build(model, [File(path=write(texts))], "text", cutoff=16).train
    joined = [np.concatenate([each.tokens for each in examples]).tolist() for examples in
              ([each for window in windows for each in window.examples], [*whole])]  # fmt: skip
    assert joined[0] == joined[1]


def test_what_needs_all_rows_is_refused(model, write, tmp_path):
    path = write(rows(0, 4))
    for options in ({"validation": 0.1}, {"sources": [File(path=path, samples=3)]}):
        with pytest.raises(ValidationError, match="rows"):
            DatasetConfig(**{"sources": [File(path=path)], "streaming": True, **options})
    registered = {"few": {"file_name": "rows.jsonl", "num_samples": 2}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(registered))
    with pytest.raises(DataError, match="2 rows are drawn"):
        build(model, [Named(path="few")], dataset_dir=str(tmp_path), streaming=True)
    with pytest.raises(DataError, match="all prompts"):
        DatasetConfig(sources=[File(path=path)], streaming=True).prompts(0)
    assert DataAlgorithm.streams is False


def test_a_hub_dataset_is_fetched_as_it_is_read(write, tmp_path, model):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(0, 7)))
    kept = Path(datasets.config.HF_DATASETS_CACHE)
    before = {*kept.rglob("*.arrow")}
    built = build(model, [Hub(path=str(folder))], streaming=True, buffer_size=3)
    assert sum(len(window.examples) for window in passed(built.stream)) == 7
    assert {*kept.rglob("*.arrow")} == before
