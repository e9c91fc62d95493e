"""Samples to calibrate on, and others to measure on: drawn from the data of the recipe, in rows of one length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gym_core import GymError, Run
from gym_data.kinds import Data
from gym_data.row_reader import ShapeError
from gym_quant.config.base import Sampling
from gym_torch.batch import Example, Piece, unbranched
from gym_torch.config import torch_algorithm
from gym_torch.console import say
from gym_torch.contract_checks import promised
from gym_torch.kinds import part
from gym_torch.loop.prepared_data import Prepared, begun

TOKENS = 4096  #: of a batch, at most
SHAPES = ("conversation", "text", "preference", "feedback", "stepwise", "prompt")
"""Of rows that can be calibrated on, whatever the algorithm of the run learns from; those that say more first."""


@dataclass(frozen=True)
class Rows:
    """Samples, one a row, padded on the right; attention is causal, so no token sees what stands behind it."""

    tokens: Tensor  #: [rows, length] int64
    real: Tensor  #: [rows, length] bool; false: padding
    predicts: Tensor  #: [rows, length] bool; whether the next token is one to predict
    at_once: int  #: rows of a batch; the number of rows is a multiple of it

    @classmethod
    def of(cls, samples: Sequence[Example], longest: int) -> Rows:
        """Lay out the first `longest` tokens of each sample; rows are filled up with empty ones to whole batches."""
        length = max((min(len(sample.tokens), longest) for sample in samples), default=1)
        at_once = max(1, min(len(samples), TOKENS // length))
        rows = -(-len(samples) // at_once) * at_once
        tokens = np.zeros((rows, length), dtype=np.int64)
        real, predicts = np.zeros((rows, length), dtype=bool), np.zeros((rows, length), dtype=bool)
        for row, sample in enumerate(samples):
            end = min(len(sample.tokens), length)
            tokens[row, :end], real[row, :end] = sample.tokens[:end], True
            predicts[row, : end - 1] = sample.trained[1:end]
        if not predicts.any():  # prompts alone: nothing of them is learnt
            predicts[:, :-1] = real[:, 1:]
        return cls(torch.from_numpy(tokens), torch.from_numpy(real), torch.from_numpy(predicts), at_once)

    def batches(self) -> list[slice]:
        """Return the rows of each batch."""
        return [slice(begin, begin + self.at_once) for begin in range(0, len(self.tokens), self.at_once)]

    @property
    def count(self) -> int:
        """Number of tokens that are no padding."""
        return int(self.real.sum())


@dataclass(frozen=True)
class Samples:
    """What a quantizer sees of the data."""

    calibration: Rows
    holdout: Rows
    told: dict[str, Any]  #: how many, of what, and whether those held out were trained on


def draw(config: Sampling, run: Run, model: Path) -> Samples | None:
    """Draw samples with the seed of the run; None where neither the quantizer nor the recipe names data it can look at.

    Those held out are of the validation split where there is one; else training saw them and calibration did not.

    Raises GymError where there are too few, and what the data plugin raises.
    """
    data = config.data or part(run.recipe, Data)
    if data is None:
        if config.calibrates or config.max_kl is not None:
            what = "calibrates on samples" if config.calibrates else "measures `max_kl` on samples"
            raise GymError(
                f"it {what}, and the recipe has no data",
                key="quantization.data",
                fix="name some: `data: FILE` under `quantization`, or `gym quantize ... data=FILE`",
            )
        return None
    if data.brings_inputs():
        if config.data is None and not config.calibrates and config.max_kl is None:
            say("nothing is measured: samples may have images; `gym quantize ... data=FILE` names text for it")
            return None
        raise GymError(
            "samples may have images, and it measures and calibrates on text alone",
            key="quantization.data",
            fix="name text: `data: FILE` under `quantization`, or `gym quantize ... data=FILE`",
        )
    shape, every = _read(data, run, model)
    train, validation = every.train, every.validation
    draws = np.random.default_rng(run.recipe.train.seed)
    order = draws.permutation(len(train)).tolist()
    apart = None if validation is None else draws.permutation(len(validation)).tolist()[: config.holdout_samples]
    if apart is None:
        few = min(config.holdout_samples, max(1, len(order) // 4))
        if len(order) < 2:
            raise GymError(
                f"{len(order)} sample is too few to calibrate on some and to measure on others",
                key="quantization.data",
                fix="name more data; plain text becomes samples of `data.cutoff` tokens",
            )
        held, order = [train[place] for place in order[:few]], order[few:]
    else:
        held = [validation[place] for place in apart]  # type: ignore[index]
    longest = config.calibration_length
    drawn = (unbranched(train[place]) for place in order)
    if shape == "text":
        drawn = (part for sample in drawn for part in parts(sample, longest))
    chosen = list(islice(drawn, config.calibration_samples))
    calibration, holdout = (Rows.of(samples, longest) for samples in (chosen, [unbranched(sample) for sample in held]))
    told = {
        "data": every.fingerprint,
        "calibration_samples": len(chosen),
        "calibration_tokens": calibration.count,
        "holdout": [sample.id for sample in held],
        "holdout_tokens": int(holdout.predicts.sum()),
        "holdout_of": "train" if apart is None else "validation",
    }
    if not told["holdout_tokens"]:
        raise GymError("the samples held out have no token to predict", key="quantization.data", fix="name more data")
    return Samples(calibration, holdout, told)


def parts(text: Example, longest: int) -> Iterator[Example]:
    """Yield text in parts of `longest` tokens, and less than that alone as it is; what is left at the end is left out."""
    for begin in range(0, max(1, len(text.tokens) - longest + 1), longest):
        end = begin + longest
        yield Piece(text.id, text.tokens[begin:end], text.trained[begin:end])


def fingerprint(config: Sampling, run: Run, model: Path) -> str:
    """Return what names the samples that there are to draw from: their tokens, with the tokenizer of a model; empty without data.

    Raises what the data plugin raises.
    """
    data = config.data or part(run.recipe, Data)
    return prepared(data, run, model).fingerprint if data else ""


def enough(samples: Samples, widest: int) -> None:
    """Raise GymError where there are fewer calibration tokens than the widest layer has inputs."""
    if samples.calibration.count < widest:
        raise GymError(
            f"{samples.calibration.count} tokens are too few to calibrate layers of {widest} inputs",
            key="quantization.calibration_samples",
            fix="name more data, or quantize without calibration: `quantization: rtn`",
        )


def prepared(data: Data, run: Run, model: Path) -> Prepared:
    """Return the samples of these data as the algorithm of a run learns from them, with the tokenizer of a model.

    Where their rows are of another shape, as plain text is, they are read as that. Raises what the data plugin raises.
    """
    return _read(data, run, model)[1]


def _read(data: Data, run: Run, model: Path) -> tuple[str, Prepared]:
    """Return what `prepared` does, and of which shape its rows are read."""
    first: ShapeError | None = None
    for shape in dict.fromkeys((torch_algorithm(run.recipe).rows, *SHAPES)):
        try:
            found = data.build(tokenizer=model, rows=shape, seed=run.recipe.train.seed, day=begun(run.record))
        except ShapeError as error:
            first = first or error
            continue
        return shape, promised(found, Prepared, data, "data")  # type: ignore[type-abstract]
    assert first is not None
    raise first
