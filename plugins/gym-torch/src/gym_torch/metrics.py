"""Metrics of objectives: how the values of the batches of a step are reduced to the number that is logged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor


class Metric(ABC):
    """Base of what `gym_torch.objective.Objective.loss` returns by name beside the loss. All tensors are scalars."""

    over_processes: ClassVar[str] = "sum"
    """How the numbers of several processes become one: `sum` or `max`."""

    @abstractmethod
    def numbers(self) -> tuple[Tensor, ...]:
        """Return the scalars that make it."""

    @abstractmethod
    def counted(self, share: float) -> Self:
        """Return it detached, in fp32, as a batch of this share of its step counts."""

    @abstractmethod
    def plus(self, other: Self) -> Self:
        """Return that of two batches together."""

    @staticmethod
    @abstractmethod
    def value(numbers: Sequence[float], weight: float) -> float | None:
        """Return what is logged, from `numbers` over all batches; `weight` is that of the loss, where it is not counted yet.

        None where there is nothing to log.
        """


@dataclass(frozen=True)
class Mean(Metric):
    """A sum that is divided by the same weight as the loss."""

    total: Tensor

    def numbers(self) -> tuple[Tensor, ...]:
        """Return the sum."""
        return (self.total,)

    def counted(self, share: float) -> Self:
        """Return its share."""
        return type(self)(self.total.detach().float() * share)

    def plus(self, other: Self) -> Self:
        """Add them."""
        return type(self)(self.total + other.total)

    @staticmethod
    def value(numbers: Sequence[float], weight: float) -> float:
        """Divide."""
        return numbers[0] / weight


@dataclass(frozen=True)
class Ratio(Metric):
    """A sum, and how many it is the sum of; not logged where that is 0, for a mean of nothing has no value."""

    total: Tensor
    count: Tensor

    @classmethod
    def of(cls, values: Tensor, counts: Tensor) -> Self:
        """Return the sum of values over that of counts."""
        return cls(values.sum(), counts.sum().to(values.dtype))

    def numbers(self) -> tuple[Tensor, ...]:
        """Return both."""
        return self.total, self.count

    def counted(self, share: float) -> Self:
        """Return a share of both."""
        return type(self)(self.total.detach().float() * share, self.count.detach().float() * share)

    def plus(self, other: Self) -> Self:
        """Add both."""
        return type(self)(self.total + other.total, self.count + other.count)

    @staticmethod
    def value(numbers: Sequence[float], weight: float) -> float | None:
        """Divide one by the other."""
        total, count = numbers
        return total / count if count else None


@dataclass(frozen=True)
class Largest(Metric):
    """The largest value of a step."""

    over_processes: ClassVar[str] = "max"

    among: Tensor

    def numbers(self) -> tuple[Tensor, ...]:
        """Return it."""
        return (self.among,)

    def counted(self, share: float) -> Self:
        """Return it as it is: a share of it would be another value."""
        return type(self)(self.among.detach().float())

    def plus(self, other: Self) -> Self:
        """Take the larger."""
        return type(self)(torch.maximum(self.among, other.among))

    @staticmethod
    def value(numbers: Sequence[float], weight: float) -> float:
        """Return it."""
        return numbers[0]


Metrics = Mapping[str, Metric]

UNLEARNT = "steps_without_update"  #: share of the steps that had nothing to learn from, among those that say so
#: What the loop itself writes into a line of the log: nothing else may have these names.
OF_THE_LOOP = frozenset(
    {
        "step",
        "epoch",
        "loss",
        "aux_loss",
        "grad_norm",
        "loss_scale",
        "overflowed_steps",
        "learning_rate",
        "num_tokens",
        "tokens_per_second",
        "seconds",
        UNLEARNT,
    }
)
