"""What an algorithm adds to the engine: how examples become a batch, and how a batch becomes a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from gym_core import Run
from gym_torch.auxiliary import AuxiliaryModule
from gym_torch.batch import Batch, Example, apart
from gym_torch.packing import PADDED, Layout
from gym_torch.policy import Policy

if TYPE_CHECKING:
    from gym_torch.model.loading import LoadedModel

Scores = Callable[[Batch], Tensor]


class Objective(ABC):
    """Base of every objective; `loss` is the one thing that must be written.

    The loop sums `weight` over all batches and processes of an optimizer step before the first backward pass,
    and divides every `loss` by that sum. How a step is cut into batches therefore changes nothing.
    """

    policy: ClassVar[type[Policy]] = Policy
    """What is trained, and scores batches. A subclass may return more than log-probabilities."""
    task: ClassVar[str] = "causal-lm"
    """What the model is for that it trains, one of `gym_torch.model.tasks.TASKS`; a head of numbers is then named `head`
    beside it."""
    largest: ClassVar[frozenset[str]] = frozenset()
    """Metrics of which the largest of a step is logged, rather than the mean."""
    temperature: float = 1.0  #: of the distribution that `policy` scores labels under

    def __init__(self, config: Any, layout: Layout = PADDED) -> None:
        """Hold the options of the algorithm, the component that names this class in its `objective`, and the layout."""
        self.config, self.layout = config, layout

    def beside(self, model: PreTrainedModel) -> Mapping[str, AuxiliaryModule]:
        """Return what is trained beside the model, by name, before any training; `self.policy` uses it. Default: nothing."""
        return {}

    def load_beside(self, run: Run, model: LoadedModel) -> Mapping[str, AuxiliaryModule]:
        """Return it as a run begins with it. Override it where weights are there already; a plan asks `beside` alone."""
        return self.beside(model.model)

    def collate(self, examples: Sequence[Example]) -> Batch:
        """Lay examples out as a batch on the CPU.

        Override it where samples are more than tokens, or share a prefix: `self.layout.lay_out(examples, prefixes)`.
        """
        return self.layout.lay_out(*apart(examples))

    def weight(self, batch: Batch) -> float:
        """Return this batch's share of the denominator of its step. Default: the number of trained tokens."""
        return float(len(batch.targets))

    @abstractmethod
    def loss(self, policy: Scores, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss, summed and not divided by anything, and sums of further metrics by name.

        `policy(batch)` returns log-probabilities `[n]` of `batch.targets`, in fp32. Metrics are divided by the
        same weight as the loss and logged beside it; a metric `[2]` is a sum and how many it is the sum of, and is divided
        by that, or left out of the log where that is 0. Their names must not depend on the batch.
        """
