"""From responses to a loss: what all objectives of preference learning share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic

import torch
from torch import Tensor

from gym_core.component import load_object
from gym_preference.config import PreferenceAlgorithm, WithReference
from gym_preference.reference_cache import CachedLogProbs
from gym_torch.objective import E, Objective, Scores
from gym_torch.packing import PADDED, Layout
from gym_torch.prompt_responses import PromptResponses, ResponseBatch, lay_out

NOT_ARGUMENTS = WithReference.model_fields.keys() - {"beta"}  #: fields that are no argument of a loss


class ReferencedObjective(Objective[ResponseBatch, E], Generic[E]):
    """Base of the objectives over responses that may have a reference: write `prompt_responses` and `loss`.

    The trainer says what the reference is, by `reference` or by `cached_log_probs`. Without either, as in a plan, every response
    has the log-probability 0 under it.
    """

    reference: Callable[[ResponseBatch], Tensor] | None = None
    """From a batch to the log-probabilities of its targets under the reference, `[n]`, without a graph."""
    cached_log_probs: CachedLogProbs | None = None
    """What the reference said of each example before training."""

    @abstractmethod
    def prompt_responses(self, example: E) -> PromptResponses:
        """Return the prompt and the responses of an example; the tokens of the responses are what the reference scores."""

    def collate(self, examples: Sequence[E]) -> ResponseBatch:
        """Lay out the responses of all examples, those to one prompt behind a single copy of it."""
        groups = [self.prompt_responses(example) for example in examples]
        columns = (
            {}
            if self.cached_log_probs is None
            else {"reference": torch.cat([self.cached_log_probs.of(each) for each in groups])}
        )
        return lay_out(self.layout, groups, columns)

    def log_ratios(self, policy: Scores[ResponseBatch], batch: ResponseBatch) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the targets, and the same less those under the reference: `[n]` each."""
        known = batch.columns.get("reference")
        if known is None and self.reference is not None:
            known = self.reference(batch)  # before the policy builds its graph
        log_probs = policy(batch)
        return log_probs, log_probs if known is None else log_probs - known


class PreferenceObjective(ReferencedObjective[E], Generic[E]):
    """Base of the objectives of preference learning: `loss` applies `losses` to `arguments` and what it knows."""

    def __init__(self, config: PreferenceAlgorithm, layout: Layout = PADDED) -> None:
        """Take the losses and their arguments from the options."""
        super().__init__(config, layout)
        self.losses: Callable[..., Tensor] = load_object(type(config).loss)
        self.arguments = config.model_dump(exclude=set(NOT_ARGUMENTS))
