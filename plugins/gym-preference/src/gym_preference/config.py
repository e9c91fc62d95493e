"""What every algorithm of preference learning asks of a recipe. Nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gym_core import Flat
from gym_torch import TorchAlgorithm
from gym_torch.config import Further


class Preferring(TorchAlgorithm):
    """Base of the algorithms that make some answers more likely than others; an example is a pair, or a judged answer."""

    target: ClassVar[str] = "gym_preference.trainer:PreferenceTrainer"

    beta: Annotated[float, Field(gt=0), Flat("pref_beta")] = 0.1
    """How much a log-ratio of answers counts: what is small stays nearer to the reference."""


class Referenced(Preferring):
    """Base of those that measure answers against a reference: the model as it was before training, or another one."""

    reference_model: Annotated[str | None, Flat("ref_model")] = None
    """What answers are measured against: a family, a folder or a Hub id; by default the model as it was before training."""
    cache_reference: bool | Literal["auto"] = "auto"
    """Whether the reference scores all samples once, before training, and is let go of, rather than each batch as its turn
    comes. `auto`: where it would otherwise be a second model in memory, or be asked about the same samples again."""

    def further(self) -> Sequence[Further]:
        """Return the reference, where it is not let go of before the first step."""
        return (Further(self.reference_model),) if self.cache_reference is False else ()


class Pairwise(Preferring):
    """Base of the algorithms that learn from pairs of answers. A loss is a function of two numbers for each pair.

    These are the log-probabilities of the answers, less those under the reference where there is one. The fields that a
    subclass adds are further arguments of its `loss`.
    """

    rows: ClassVar[str] = "preference"
    objective: ClassVar[str] = "gym_preference.objective:PairObjective"
    schedule: ClassVar[str] = "gym_preference.pairs:recorded"
    loss: ClassVar[str] = ""
    """`module:function` from log-ratios `[pairs]` of chosen and rejected answers, `beta` and the fields that a subclass adds
    to losses `[pairs]`."""
    per_token: ClassVar[bool] = False
    """Whether log-ratios are means over the tokens of an answer rather than sums."""

    ftx: Annotated[float, Field(ge=0), Flat("pref_ftx")] = 0.0
    """What the mean negative log-likelihood of the tokens of the chosen answer counts beside the loss."""
