"""Sequences of one conversation that begin alike: what they share stands once, and each can be read off again."""

import numpy as np
import pytest
from data_cases import chat

from gym_data import DatasetConfig, File
from gym_data.encodings.shared_prefixes import joined
from gym_data.examples import Branched
from gym_data.templates import Qwen3
from gym_data.tokenizer import Tokenizer


def sequences(number, seed, alphabet=3):
    """Sequences over few tokens, so that many begin alike; as the first token of any, none of them is learnt."""
    draw = np.random.default_rng(seed)
    made = [draw.integers(0, alphabet, draw.integers(1, 12)).astype(np.int32) for _ in range(number)]
    masks = [draw.random(len(tokens)) < 0.3 for tokens in made]
    for mask in masks:
        mask[0] = False
    return list(zip(made, masks, strict=True))


def read_off(one):
    """All that the segments say: for every token in its place, what comes before it, and whether it is learnt."""
    ends = np.cumsum([length for length, _ in one.segments])
    found = {}
    before = {None: ()}
    for number, ((length, prefix), end) in enumerate(zip(one.segments, ends, strict=True)):
        path = before[prefix]
        for token, learnt in zip(one.tokens[end - length : end], one.trained[end - length : end], strict=True):
            path = (*path, int(token))
            assert path not in found, "it stands there twice"
            found[path] = bool(learnt)
        before[number] = path
    return found


@pytest.mark.parametrize("seed", range(30))
def test_joined_sequences_say_what_they_say_apart(seed):
    apart = sequences(6, seed)
    (one,) = joined(apart, 10**6)
    expected = {}
    for tokens, trained in apart:
        for place in range(len(tokens)):
            path = tuple(tokens[: place + 1].tolist())
            expected[path] = expected.get(path, False) or bool(trained[place])
    assert read_off(one) == expected
    assert all(prefix is None or prefix < number for number, (_, prefix) in enumerate(one.segments))


@pytest.mark.parametrize("most", [1, 8, 15, 40])
def test_what_is_joined_takes_no_more_than_it_may(most):
    apart = sequences(20, 7, alphabet=2)
    together = list(joined(apart, most))
    longest = max(len(tokens) for tokens, _ in apart)
    assert all(len(one.tokens) <= max(most, longest) for one in together)
    learnt = {path for one in together for path, learns in read_off(one).items() if learns}
    assert learnt == {tuple(tokens[: place + 1].tolist()) for tokens, mask in apart for place in np.flatnonzero(mask)}


def thinking(turns):
    """A conversation in which every answer was thought about."""
    return chat(
        *(f"<think>\nso {n} and so on\n</think>\n\nit is {n}" if n % 2 else f"what is {n}?" for n in range(2 * turns))
    )


def prepared(model, write, turns, branches, cutoff=100_000, **options):
    path = write([{"messages": thinking(turns)}], f"{turns}.jsonl")
    config = DatasetConfig(sources=[File(path=path)], template=Qwen3(), cutoff=cutoff, **options)
    return config.build(tokenizer=model, seed=0, branches=branches)


def test_a_conversation_with_thoughts_takes_one_sample_that_grows_with_it(model, write):
    """Apart, each of n answers takes all of the conversation so far once more."""
    sizes = {turns: prepared(model, write, turns, True).report["tokens"] for turns in (5, 10, 20)}
    apart = {turns: prepared(model, write, turns, False).report["tokens"] for turns in (5, 10, 20)}
    assert 1.9 < sizes[20] / sizes[10] < 2.1 and apart[20] / apart[10] > 3
    assert sizes[20] * 5 < apart[20]
    one = prepared(model, write, 10, True)
    (example,) = one.train
    assert isinstance(example, Branched) and len(example.segments) == 2 * 10 - 1
    assert one.train.lengths.tolist() == [len(example.tokens)]
    tokenizer = Tokenizer(model)
    assert sum("so " in tokenizer.decode(example.tokens[where]) for _, where in example.parts) == 10
    assert example.trained.sum() == sum(each.trained.sum() for each in prepared(model, write, 10, False).train)
    (note,) = [note for note in one.report["notes"] if "several sequences" in note]
    assert f"{sizes[10]:,} tokens in place of {apart[10]:,}" in note


def test_it_is_cut_where_it_would_be_longer_than_a_sample_may(model, write):
    apart = prepared(model, write, 10, False)
    most = int(apart.train.lengths.max()) + 50
    several = prepared(model, write, 10, True, cutoff=most)
    assert 1 < len(several.train) < 10 and several.train.lengths.max() <= most
    assert [example.id.partition("#")[2] for example in several.train] == [
        "",
        *map(str, range(2, len(several.train) + 1)),
    ]
    learnt = sum(int(example.trained.sum()) for example in several.train)
    assert learnt == sum(int(example.trained.sum()) for example in apart.train)


def test_what_has_one_sequence_is_an_example_like_any_other(model, write):
    plain = [build.train[0] for build in (prepared(model, write, 1, branches) for branches in (True, False))]
    assert type(plain[0]) is type(plain[1]) and plain[0].tokens.tolist() == plain[1].tokens.tolist()


@pytest.mark.parametrize("validation", [0.2, 0.3, 4])
def test_the_same_rows_are_held_out_however_many_sequences_they_are(model, write, validation):
    """What a run holds out is read again by what knows nothing of branches, such as `gym predict`."""
    rows = [
        {"messages": chat(*[f"say {number} {turn}" for turn in range(2 + 6 * (number < 5))])} for number in range(20)
    ]
    config = {"sources": [File(path=write(rows))], "template": Qwen3(), "validation": validation}
    for seed in range(6):
        built = [
            DatasetConfig(**config).build(tokenizer=model, seed=seed, branches=branches) for branches in (True, False)
        ]
        held = [{each.id.partition("#")[0] for each in data.validation} for data in built]
        assert held[0] == held[1] and len(held[0]) == (validation if validation >= 1 else validation * len(rows))


def test_positions_are_counted_along_what_each_segment_continues(model, write):
    """Of a sample that branches the longest branch counts, of any other its tokens."""
    rows = [
        {"prompt": "a", "chosen": "yes " * 4, "rejected": "no " * 9},
        {"prompt": "a b", "chosen": "x", "rejected": "y"},
    ]
    config = DatasetConfig(sources=[File(path=write(rows))])
    pairs = config.build(tokenizer=model, rows="preference", seed=0).train
    most = [pair.shared + max(pair.chosen, len(pair.tokens) - pair.shared - pair.chosen) for pair in pairs]
    assert pairs.positions(np.array([1, 0])).tolist() == most[::-1]
    plain = config.build(tokenizer=model, rows="feedback", seed=0).train
    assert plain.positions(np.arange(len(plain))).tolist() == plain.lengths.tolist()
