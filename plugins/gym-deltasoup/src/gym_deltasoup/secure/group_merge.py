"""Robust merges of sums of groups: a hostile member spoils its own group, and a robust rule leaves that group out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gym_core import GymError
from gym_deltasoup.kinds import Merger
from gym_deltasoup.merging.drawn import uniform
from gym_deltasoup.secure.allowed import check_merger
from gym_deltasoup.vector_merge import MergedVectors, merge_vectors


@dataclass(frozen=True)
class GroupSum:
    """What came of a group."""

    total: Tensor  #: the sum of the changes, fp64 `[coordinates]`
    members: int  #: of how many


def groups(names: Sequence[str], size: int, seed: int) -> list[list[str]]:
    """Return members in groups of at least `size`, which seed and names decide. Draw the seed after they joined."""
    if size < 3 or len(names) < size:
        why = f"groups of {size} of {len(names)} members hide nobody"
        raise GymError(why, key="size", fix="take groups of 3 or more")
    order = sorted(names, key=lambda name: (float(uniform(seed, name, 0, 1)), name))
    count = len(order) // size
    return [order[number::count] for number in range(count)]


def merge_groups(merger: Merger, sums: Mapping[str, GroupSum], hostile: int) -> MergedVectors:
    """Merge the means of groups. Each hostile member may spoil one group, so as many groups must be tolerated.

    Raises GymError for what looks at single contributions, and for a merger that tolerates too few.
    """
    check_merger(merger)
    names = sorted(sums)
    means = torch.stack([sums[each].total / sums[each].members for each in names])
    return merge_vectors(merger, means, hostile, ids=names)
