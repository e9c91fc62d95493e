"""The tokens that could be drawn: with `top_p`, `top_k` or `min_p`, the set that each token of a completion was drawn from.

What samples draws from a distribution that is cut and scaled up again. It is the one that is trained: the policy, the policy when
the round began and the reference are compared over the very set that was drawn from (DeepSeek-V3.2, arXiv:2512.02556, section
3.1). The set follows from the policy that sampled, so it is found before any training, and stays with the round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from gym_rl.rollouts.experience import Experience, Rollout
from gym_torch.batch import Batch


def with_top_p_sets(
    experience: Experience,
    batches: Iterable[Sequence[Rollout]],
    collate: Callable[[Sequence[Rollout]], Batch],
    tokens: Callable[[Batch], Tensor],
    device: torch.device,
    world: int = 1,
) -> Experience:
    """Return a round that knows the tokens that could be drawn, the same in every process.

    `tokens` returns those of a batch as `gym_torch.policy.Policy.nucleus` does. Together the `batches` of all processes hold each
    completion once, those of processes that share batches counted once.
    """
    found: list[tuple[int, np.ndarray, np.ndarray]] = []
    for answers in batches:
        batch = collate(answers).to(device)
        pairs = tokens(batch).cpu()
        counts = torch.bincount(pairs[:, 0], minlength=len(batch.targets))
        lengths = [int(answer.trained.sum()) for answer in answers]
        own = counts.split(lengths)
        sets = pairs[:, 1].int().split([int(part.sum()) for part in own])
        found += [(one.number, a.numpy(), b.numpy()) for one, a, b in zip(answers, own, sets, strict=True)]
    if world > 1:
        found = gather_object(found)
    # Processes that share batches all have them.
    every = {number: (counts, tokens) for number, counts, tokens in found}
    counted, drawable = zip(*(every[number] for number in sorted(every)), strict=True)
    made = experience.with_columns({"nucleus_size": torch.from_numpy(np.concatenate(counted))})
    return replace(made, nucleus=torch.from_numpy(np.concatenate(drawable)))


def top_p_sets(answers: Sequence[Rollout]) -> Tensor | None:
    """Return the tokens that could be drawn at the targets of a batch of completions, as `gym_torch.batch.Batch.nucleus`."""
    sets = [answer.nucleus for answer in answers if answer.nucleus is not None]
    if not sets:
        return None
    counts = torch.from_numpy(np.concatenate([answer.columns["nucleus_size"] for answer in answers]))
    rows = torch.arange(len(counts)).repeat_interleave(counts)
    return torch.stack([rows, torch.from_numpy(np.concatenate(sets)).long()], 1)
