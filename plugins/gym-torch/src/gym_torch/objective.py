"""The base of objectives: how examples are collated into a batch, and how the loss of a batch is computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, cast

from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import TypeVar

from gym_torch.auxiliary_module import AuxiliaryModule
from gym_torch.batch import Batch, Example, apart
from gym_torch.metrics import Metrics
from gym_torch.packing import PADDED, Layout
from gym_torch.policy import Policy

if TYPE_CHECKING:
    from gym_torch.further_models import TrainedFurther
    from gym_torch.model.loading import LoadedModel

B = TypeVar("B", bound=Batch)
E = TypeVar("E", bound=Example, default=Example)
Scores = Callable[[B], Tensor]
"""From a batch to what the policy says of it: log-probabilities `[n]` of `batch.targets`, fp32, or as its class says."""


class Objective(ABC, Generic[B, E]):
    """Base of every objective over batches of a kind, `Objective[Batch]`; `loss` is the one thing that must be written.

    Where samples are of a kind of their own, name it too, `Objective[Batch, Pair]`: that is what `collate` is given.

    The loop sums `weight` over all batches and processes of an optimizer step before the first backward pass,
    and divides every `loss` by that sum. How a step is cut into batches therefore changes nothing.
    """

    policy: type[Policy[Any]] = Policy
    """What is trained, and scores batches. A subclass may return more than log-probabilities; options may choose it."""
    task: ClassVar[str] = "causal-lm"
    """What the model is for that it trains, one of `gym_torch.model.tasks.TASKS`; a head of numbers is then named `head`
    beside it."""
    temperature: float = 1.0  #: of the distribution that `policy` scores labels under

    def __init__(self, config: Any, layout: Layout = PADDED) -> None:
        """Hold the options of the algorithm, the component that names this class in its `objective`, and the layout."""
        self.config, self.layout = config, layout

    def auxiliary_modules(self, model: PreTrainedModel) -> Mapping[str, AuxiliaryModule]:
        """Return what is trained beside the model, by name, before any training; `self.policy` uses it. Default: nothing."""
        return {}

    def load_auxiliary_modules(
        self, model: LoadedModel, further: Sequence[TrainedFurther] = ()
    ) -> Mapping[str, AuxiliaryModule]:
        """Return them as a run begins with them. Override it where weights are there already; a plan asks `auxiliary_modules`."""
        return self.auxiliary_modules(model.model)

    def collate(self, examples: Sequence[E]) -> B:
        """Lay examples out as a batch on the CPU.

        Override it where samples are more than tokens, or share a prefix: `self.layout.lay_out(examples, prefixes)`.
        """
        return cast(B, self.layout.lay_out(*apart(examples)))  # an objective over another kind of batch overrides it

    def weight(self, batch: B) -> float:
        """Return this batch's share of the denominator of its step. Default: the number of trained tokens."""
        return float(len(batch.targets))

    @abstractmethod
    def loss(self, policy: Scores[B], batch: B) -> tuple[Tensor, Metrics]:
        """Return the loss, summed and not divided by anything, and further metrics by name, which are logged beside it.

        `policy(batch)` returns log-probabilities `[n]` of `batch.targets`, in fp32. A metric says what it means:
        `gym_torch.metrics.Mean`, a sum that is divided as the loss is, `Ratio`, or `Largest`. The names must not depend on
        the batch.
        """
