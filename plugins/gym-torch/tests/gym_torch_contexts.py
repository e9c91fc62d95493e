"""Processes that share rows, as threads of this one: they meet where processes would talk."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_torch.attention.context_parallel import ContextGroup
from gym_torch.policy import Policy


class Meeting:
    """What one collective of all of them needs."""

    def __init__(self, size: int) -> None:
        self.barrier, self.given = Barrier(size, timeout=60), [torch.empty(0)] * size

    def gathered(self, rank: int, part: Tensor) -> list[Tensor]:
        self.given[rank] = part
        self.barrier.wait()
        found = [each.clone() for each in self.given]
        self.barrier.wait()
        return found


class Thread(ContextGroup):
    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(rank, len(meeting.given))
        self.meeting = meeting

    def _exchange(self, parts: Tensor) -> Tensor:
        return torch.stack([each[self.rank] for each in self.meeting.gathered(self.rank, parts)])

    def _sum(self, part: Tensor) -> Tensor:
        return torch.stack(self.meeting.gathered(self.rank, part)).sum(0)


def shared_by(
    size: int, model: PreTrainedModel, work: Callable[[Policy[Any]], Tensor]
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Have `size` of them do the same with copies of a model; return what each found, and its gradients by name."""
    meeting = Meeting(size)
    policies: list[Policy[Any]] = [Policy(copy.deepcopy(model)) for _ in range(size)]

    def member(rank: int) -> tuple[Tensor, dict[str, Tensor]]:
        policy = policies[rank]
        policy.context = Thread(rank, meeting)
        try:
            found = work(policy)
            found.sum().backward()  # type: ignore[no-untyped-call]
        except BaseException:
            meeting.barrier.abort()
            raise
        return found.detach(), {name: w.grad for name, w in policy.named_parameters() if w.grad is not None}

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, range(size)))


def alone(model: PreTrainedModel, work: Callable[[Policy[Any]], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Do it in one process."""
    policy: Policy[Any] = Policy(copy.deepcopy(model))
    found = work(policy)
    found.sum().backward()  # type: ignore[no-untyped-call]
    return found.detach(), {name: w.grad for name, w in policy.named_parameters() if w.grad is not None}
