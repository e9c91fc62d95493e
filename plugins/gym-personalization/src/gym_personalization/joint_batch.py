"""The batches of many users as one: the model sees a single batch, and each user finds its own part of what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad

from gym_core import GymError
from gym_torch.batch import Batch
from gym_torch.segment_spans import Spans


class Joint(NamedTuple):
    """Batches one after another, in one packed row or in padded rows."""

    batch: Batch
    tokens: list[int]  #: of each, padding included: that many in a row are its own
    targets: list[int]  #: of each: that many in a row are its own


def join(batches: Sequence[Batch]) -> Joint:
    """Return what the model is given in place of several batches, all packed or all padded.

    Raises GymError where one carries what a joint batch cannot: rows computed apart, sets of tokens or recorded experts.
    """
    if any(each.apart or each.nucleus is not None or each.experts is not None for each in batches):
        raise GymError(
            "samples that are computed one by one cannot be computed with those of others",
            key="model",
            fix="train such users with `gym train`",
        )
    packed = all(each.spans is not None for each in batches)
    targets = [len(each.targets) for each in batches]
    joined = _in_a_row(batches) if packed else _in_rows(batches)
    tokens = [each.tokens.numel() if packed else len(each.tokens) * joined.tokens.shape[1] for each in batches]
    return Joint(joined, tokens, targets)


def _in_a_row(batches: Sequence[Batch]) -> Batch:
    lengths: list[int] = []
    prefixes: list[int | None] = []
    for each in batches:
        assert each.spans is not None
        first = len(lengths)
        lengths += each.spans.lengths
        prefixes += [None if prefix is None else first + prefix for prefix in each.spans.prefixes]
    starts = _starts([each.tokens.shape[1] for each in batches])
    return Batch(
        tokens=torch.cat([each.tokens for each in batches], dim=1),
        positions=torch.cat([each.positions for each in batches], dim=1),
        target_index=torch.cat([each.target_index + start for each, start in zip(batches, starts, strict=True)]),
        spans=Spans(lengths, prefixes),
        **_labels(batches),
    )


def _in_rows(batches: Sequence[Batch]) -> Batch:
    width = max(each.tokens.shape[1] for each in batches)
    starts = _starts([len(each.tokens) for each in batches])
    places = []
    for each, start in zip(batches, starts, strict=True):
        own = each.tokens.shape[1]
        places.append((each.target_index // own + start) * width + each.target_index % own)
    rows = sum(len(each.tokens) for each in batches)
    return Batch(
        tokens=torch.cat([pad(each.tokens, (0, width - each.tokens.shape[1])) for each in batches]),
        positions=torch.arange(width, device=batches[0].tokens.device).expand(rows, width),
        target_index=torch.cat(places),
        **_labels(batches),
    )


def _labels(batches: Sequence[Batch]) -> dict[str, Any]:
    """Return the labels; the segments they are of stay with the batches, which alone know what they mean."""
    return {
        "targets": torch.cat([each.targets for each in batches]),
        "target_segment": torch.cat([each.target_segment for each in batches]),
        "segments": (),
    }


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:number]) for number in range(len(sizes))]
