"""Common prefixes of the samples of a training batch, such as a system prompt, are computed once.

Attention is causal, so the hidden states of a beginning are the same in each sample that has it, and its gradient is the sum of
what the samples send back to it: loss and gradient are those of the samples apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from gym_core import Recipe
from gym_torch.batch import Batch, Example, Piece, packed
from gym_torch.config import torch_algorithm
from gym_torch.kinds import Adapter, part
from gym_torch.model import load_balancing
from gym_torch.model.dropout import dropouts
from gym_torch.model.loading import LoadedModel
from gym_torch.packing import PACKED, Layout

LEAST = 16  #: tokens that two samples must have in common


class _Sample(NamedTuple):
    number: int  #: its place in what was given
    tokens: npt.NDArray[np.int32]
    free: int  #: tokens before the first one that is learnt: no other sample learns these


def split(
    examples: Sequence[Example], prefixes: Sequence[int | None] = ()
) -> tuple[list[Example], tuple[int | None, ...]]:
    """Return samples with what several of them begin with as segments of their own, which come first; and what each continues.

    Takes what `gym_torch.batch.packed` takes. The samples keep their order, and all tokens that are learnt.
    """
    given = tuple(prefixes) or (None,) * len(examples)
    samples = [_sample(number, example) for number, example in enumerate(examples) if given[number] is None]
    samples.sort(key=lambda each: each.tokens[: each.free].astype(">u4").tobytes())
    common = [_common(one, other) for one, other in pairwise(samples)]
    shared: list[Piece] = []
    above: list[int | None] = []
    begins: dict[int, tuple[int, int | None]] = {}  # by sample: tokens before it, and the piece that they end with

    # Samples from one to another in their order, the tokens that they have in common, and the piece that these end with.
    waiting: list[tuple[int, int, int, int | None]] = [(0, len(samples), 0, None)]
    while waiting:
        first, end, depth, before = waiting.pop()
        while first < end:
            last = first
            while last + 1 < end and common[last] - depth >= LEAST:
                last += 1
            if last == first:
                begins[samples[first].number] = depth, before
            else:
                deep = min(common[first:last])
                source = examples[samples[first].number]
                shared.append(Piece(source.id, source.tokens[depth:deep], source.trained[depth:deep]))
                above.append(before)
                waiting.append((first, last + 1, deep, len(shared) - 1))
            first = last + 1
    if not shared:
        return list(examples), given
    rest, continued = list[Example](), list[int | None]()
    for number, (example, before) in enumerate(zip(examples, given, strict=True)):
        depth, ends = begins[number] if before is None else (0, before + len(shared))
        rest.append(Piece(example.id, example.tokens[depth:], example.trained[depth:]) if depth else example)
        continued.append(ends)
    return [*shared, *rest], (*above, *continued)


def _sample(number: int, example: Example) -> _Sample:
    learnt = np.flatnonzero(example.trained)
    last = len(example.tokens) - 1  # something must be left to stand for the sample
    return _Sample(number, example.tokens, min(int(learnt[0]), last) if len(learnt) else last)


def _common(one: _Sample, other: _Sample) -> int:
    most = min(one.free, other.free)
    apart = np.flatnonzero(one.tokens[:most] != other.tokens[:most])
    return int(apart[0]) if len(apart) else most


def _lay_out(examples: Sequence[Example], prefixes: Sequence[int | None]) -> Batch:
    pieces, continued = split(examples, prefixes)
    return replace(packed(pieces, continued), shared=len(pieces) - len(examples))


SHARED = replace(PACKED, name="packed, shared prefixes once", lay_out=_lay_out)


def may_share(recipe: Recipe, layout: Layout) -> bool:
    """Return whether samples of one batch may have tokens in common: the algorithm, its adapter and the layout allow it."""
    adapter = part(recipe, Adapter)
    shares = torch_algorithm(recipe).shares_prefixes() and (adapter is None or adapter.shares_prefixes)
    return shares and layout in (PACKED, SHARED)  # padded, what they share would stand in every row again


def training_layout(recipe: Recipe, loaded: LoadedModel, model: PreTrainedModel) -> Layout:
    """Return the layout that a recipe trains a model in, which was `loaded` and is adapted by now.

    Prefixes are shared where samples may share tokens, and a beginning is computed alike for each sample that has it: dropout
    and noise on embeddings are drawn for each, and the balance of experts counts each of its tokens.
    """
    config = torch_algorithm(recipe)
    drawn = not config.disable_dropout and next(dropouts(model), None) is not None
    apart = drawn or loaded.neftune_noise_alpha or load_balancing.wanted(model, loaded.router_aux_loss_coef)
    return SHARED if may_share(recipe, loaded.layout) and not apart else loaded.layout
