"""What models say about every token of a round before it is trained on: passes without a graph, over the batches of the update.

A pass sees the same batches as the update, laid out alike, so that what it computes is what the update would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from gym_rl.rollouts.batch import RolloutBatch
from gym_rl.rollouts.experience import Experience, Rollout

Pass = Callable[[RolloutBatch], Tensor]
"""From a batch of completions to a number for each of their tokens, `[n]`."""
Batches = Callable[[], Iterator[Sequence[Rollout]]]
"""Begins anew with this process's batches of a round, each completion in one batch of one process."""
Scoring = Callable[[Experience, Batches], Mapping[str, Tensor]]
"""From a round and its batches to more columns of it, the same in every process."""


@torch.no_grad()
def scored(
    experience: Experience,
    batches: Iterable[Sequence[Rollout]],
    passes: Mapping[str, Pass],
    collate: Callable[[Sequence[Rollout]], RolloutBatch],
    device: torch.device,
    world: int = 1,
) -> dict[str, Tensor]:
    """Return a column `[sum of lengths]` fp32 for each pass, the same in every process.

    Completions that are in no process's `batches` have NaN; without passes nobody looks at `batches`.
    """
    if not passes:
        return {}
    found: list[tuple[int, dict[str, np.ndarray]]] = []
    for answers in batches:
        batch = collate(answers).to(device)
        ends = np.cumsum([int(answer.trained.sum()) for answer in answers])[:-1]
        parts = {name: np.split(score(batch).float().cpu().numpy(), ends) for name, score in passes.items()}
        found += [
            (answer.number, {name: part[place] for name, part in parts.items()}) for place, answer in enumerate(answers)
        ]
    if world > 1:
        found = gather_object(found)
    stops = torch.cumsum(experience.lengths, 0).tolist()
    columns = {name: torch.full((len(experience.tokens),), math.nan) for name in passes}
    for number, values in found:
        for name, column in columns.items():
            column[stops[number] - len(values[name]) : stops[number]] = torch.from_numpy(values[name])
    return columns
