"""Samples that are longer than the positions of a model: refused where they are in a table, else warned of."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from gym_core import DataError
from gym_testkit.architectures import build
from gym_testkit.bench import Bench
from gym_torch.batch import Piece
from gym_torch.loop.sample_positions import SamplePositions
from gym_torch.model.positions import table, trained


@dataclass
class Pair:
    """A prompt and two answers to it."""

    segments: Sequence[tuple[int, int | None]]
    id: str = "pair"
    tokens: npt.NDArray[np.int32] = field(init=False)
    trained: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        total = sum(length for length, _ in self.segments)
        self.tokens, self.trained = np.zeros(total, np.int32), np.ones(total, bool)


class Samples(list[Piece | Pair]):
    """Samples with their lengths."""

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        return np.array([len(each.tokens) for each in self])


def sample(length: int) -> Piece:
    return Piece("a sample", np.zeros(length, np.int32), np.ones(length, bool))


def test_the_table_of_a_model_ends_the_run_before_a_step() -> None:
    model = build("gpt2")
    assert trained(model) == table(model) == 128
    SamplePositions(model, "it").check(Samples([sample(128)]))
    with pytest.raises(
        DataError, match=r"1 of 2 samples are longer than the 128 positions .* one has 129 tokens"
    ) as found:
        SamplePositions(model, "it").check(Samples([sample(128), sample(129)]))
    assert "data: {cutoff: 128}" in str(found.value)


def test_two_answers_begin_at_the_same_position() -> None:
    fits, longer = Pair([(100, None), (28, 0), (20, 0)]), Pair([(100, None), (20, 0), (29, 0)])
    SamplePositions(build("gpt2"), "it").check(Samples([fits]))
    with pytest.raises(DataError, match=r"1 of 2 samples .* one has 129 tokens"):
        SamplePositions(build("gpt2"), "it").check(Samples([fits, longer]))


class Known(Samples):
    """Samples whose positions are known without one of them."""

    def positions(self, numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        return self.lengths[numbers]

    def __getitem__(self, index: object) -> NoReturn:
        raise AssertionError("it was read")


def test_samples_whose_positions_are_known_are_not_read() -> None:
    with pytest.raises(DataError, match=r"2 of 3 samples .* one has 140 tokens"):
        samples = Known([sample(129), sample(5), sample(140)])
        SamplePositions(build("gpt2"), "it").check(samples, samples.positions)


def test_positions_that_are_computed_are_warned_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    model = build("llama")
    assert (trained(model), table(model)) == (128, None)
    looked = SamplePositions(model, "it")
    for _ in range(2):
        looked.check(Samples([sample(130), sample(5)]))
    assert " ".join(capsys.readouterr().err.split()).count("1 of 2 samples are longer than the 128 positions") == 1
    model.config.rope_parameters["rope_type"] = "dynamic"  # which goes on as far as a text does
    assert trained(model) is None


def test_a_run_ends_before_its_first_step(bench: Bench) -> None:
    path = bench.root / "gpt2"
    shutil.copytree(bench.model(), path)
    shape = GPT2Config(vocab_size=264, n_embd=32, n_head=4, n_layer=1, n_positions=8, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(shape).save_pretrained(path)
    with pytest.raises(DataError, match="samples are longer than the 8 positions of the model"):
        bench.run(bench.recipe("sft", max_steps=1) | {"model": str(path)})


def test_each_side_of_a_pair_has_positions_of_its_own(bench: Bench) -> None:
    """Both sides fit the table, and do not fit it one after the other."""
    path = bench.root / "gpt2"
    shutil.copytree(bench.model(), path)
    shape = GPT2Config(vocab_size=264, n_embd=32, n_head=4, n_layer=1, n_positions=96, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(shape).save_pretrained(path)
    rows = [{"prompt": "what?", "chosen": "yes " * 12, "rejected": "no, " * 12}]
    recipe = bench.recipe("dpo", max_steps=1) | {"model": str(path), "data": {"sources": str(bench.file(rows))}}
    bench.run(recipe)
    longer = [{"prompt": "what?", "chosen": "yes " * 12, "rejected": "no, " * 20}]
    with pytest.raises(DataError, match="longer than the 96 positions of the model"):
        bench.run(recipe | {"data": {"sources": str(bench.file(longer))}}, "longer")
