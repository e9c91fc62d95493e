"""Laws of data: samples that a model can read, the same each time, and a run that learns from them.

What reads files shows one that ends in `.jsonl` among the `examples` of an option; the laws write it.
"""

from __future__ import annotations

import json
import math
from typing import Any, cast

import numpy as np
from tokenizers import Tokenizer

from gym_core.discovery import entries
from gym_data.kinds import Data
from gym_testkit import rows
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.example_files import there
from gym_testkit.law import laws_of

laws = laws_of("data", "data")


def _built(brought: Brought, bench: Bench) -> Any:
    with there(brought.options(), bench, rows.make("conversation")):
        return brought.sample().build(tokenizer=bench.model(), rows="conversation", seed=0)


def _samples(split: Any) -> list[Any]:
    return [split[index] for index in range(len(split))] if split is not None else []


@laws("samples are token ids of the model, and say what is learnt")
def readable(brought: Brought, bench: Bench) -> None:
    """Each has a name of its own, ids that the tokenizer has, whether each is learnt, and the length that was said before."""
    made, known = _built(brought, bench), Tokenizer.from_file(str(bench.model() / "tokenizer.json")).get_vocab_size()
    names = [sample.id for split in (made.train, made.validation) for sample in _samples(split)]
    assert names and len(set(names)) == len(names), "two samples have one name"
    for split in filter(None, (made.train, made.validation)):
        for sample, length in zip(_samples(split), split.lengths, strict=True):
            tokens, trained = np.asarray(sample.tokens), np.asarray(sample.trained)
            assert tokens.shape == trained.shape == (length,), f"{sample.id}: {tokens.shape}, {trained.shape}, {length}"
            assert tokens.dtype.kind in "iu" and trained.dtype == bool, f"{sample.id}: {tokens.dtype}, {trained.dtype}"
            assert tokens.min() >= 0 and tokens.max() < known, f"{sample.id} has tokens that there are not"
    assert any(sample.trained.any() for sample in _samples(made.train)), "nothing is learnt"


@laws("the same options are the same samples")
def the_same(brought: Brought, bench: Bench) -> None:
    """Built twice, they have one fingerprint, and what is reported of them can be written to `run.json`."""
    one, other = _built(brought, bench), _built(brought, bench)
    assert isinstance(one.fingerprint, str) and one.fingerprint == other.fingerprint != ""
    first, second = ([sample.tokens.tolist() for sample in _samples(each.train)] for each in (one, other))
    assert first == second
    assert json.dumps(one.report)


@laws("no sample is longer than is said before", lambda brought: cast(Data, brought.sample()).longest() is not None)
def longest(brought: Brought, bench: Bench) -> None:
    """`longest`, by which a run is planned and positions are scaled, bounds every sample."""
    most = cast(Data, brought.sample()).longest()
    assert max(_built(brought, bench).train.lengths) <= cast(int, most)


@laws("a run learns from it")
def trains(brought: Brought, bench: Bench) -> None:
    """An algorithm takes steps over its samples."""
    assert "sft" in {entry.name for entry in entries("algorithms")}, "nothing to learn with: pip install gym-sft"
    with there(brought.options(), bench, rows.make("conversation")):
        found = bench.run(bench.recipe("sft") | {"data": {"name": brought.name, **brought.options()}})
    assert all(map(math.isfinite, losses := found.series("loss"))) and losses
