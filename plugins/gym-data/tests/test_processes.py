"""However many processes render, the cache holds the same bytes, and the first thing wrong is the same."""

import time

import pytest
from data_cases import UNMARKED, chat

from gym_core import DataError, cache_dir
from gym_data import DatasetConfig, File
from gym_data.chat import render
from gym_data.chat.template_pool import WORKERS

COUNTS = (1, 2, 5)


def build(model, path, processes, shape="conversation", **options):
    config = DatasetConfig(sources=[File(path=path)], processes=processes, rebuild=True, **options)
    return config.build(tokenizer=model, rows=shape, seed=0)


def conversation(number):
    return {"messages": chat(f"say {number}", f"it is {number}", "and?", "so " * (number % 7 + 1))}


def pair(number):
    return {"prompt": f"say {number}", "chosen": "yes" * (number % 5), "rejected": f"no {number}"}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for module in ("conversation_encoding", "pair_encoding"):
        monkeypatch.setattr(f"gym_data.encodings.{module}.BATCH", 7)


@pytest.mark.parametrize(
    ("shape", "row"), [("conversation", conversation), ("preference", pair), ("prompt", conversation)]
)
def test_the_bytes_are_the_same(shape, row, with_template, write):
    path, model = write([row(number) for number in range(100)]), with_template(UNMARKED)
    found = []
    for processes in COUNTS:
        made = build(model, path, processes, shape, validation=0.1)
        folder = cache_dir() / "tokens" / made.key
        found.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert found[0] == found[1] == found[2]
    assert len(WORKERS.idle) <= 1, "processes that have nothing to do end"


def test_the_first_thing_wrong_is_the_first_row_that_is(with_template, write):
    """The template's refusal comes before what is wrong with a row that was read ahead."""
    refusing = "{% if 'say 5' == messages[0].content %}{{ raise_exception('not five') }}{% endif %}" + UNMARKED
    rows = [conversation(number) for number in range(100)]
    rows[16] = {"messages": []}
    path, model = write(rows), with_template(refusing)
    for processes in COUNTS:
        with pytest.raises(DataError, match="row 6: the chat template refused it: not five"):
            build(model, path, processes)


def test_skipped_rows_are_counted_alike(with_template, write):
    refusing = "{% if '5' in messages[0].content %}{{ raise_exception('no five') }}{% endif %}" + UNMARKED
    path, model = write([conversation(number) for number in range(100)]), with_template(refusing)
    reports = [build(model, path, processes, bad_rows="skip").report for processes in COUNTS]
    assert reports[0] == reports[1] == reports[2] and reports[0]["bad"] == 19


def test_batches_of_which_nothing_is_left_end_nothing(with_template, write):
    rows = [{"prompt": "a", "chosen": "b", "rejected": "b"}] * 30 + [pair(number) for number in range(1, 30)]
    assert len(build(with_template(UNMARKED), write(rows), 2, "preference").train) == 24


def test_a_template_that_never_ends_is_told_after_its_first_row(with_template, write, monkeypatch):
    """Rows behind it, of its batch and of those that were asked for ahead, do not wait for their ends one after another."""
    monkeypatch.setattr(render, "SECONDS", 0.5)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}" + UNMARKED
    path, model = write([conversation(number) for number in range(60)]), with_template(endless)
    begun = time.monotonic()
    with pytest.raises(DataError, match=r"row 1: the chat template .*did not end within 0.5 s"):
        build(model, path, 2)
    assert time.monotonic() - begun < 4
    assert not WORKERS.busy
