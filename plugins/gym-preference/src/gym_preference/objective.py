"""From answers to a loss: what all objectives of preference learning share, and that of pairs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gym_core.component import load_object
from gym_preference import LDDPO
from gym_preference.pairwise import responses
from gym_preference.config import PairwisePreference, PreferenceAlgorithm, WithReference
from gym_preference.accuracy import half_for_ties
from gym_preference.reference_cache import CachedLogProbs
from gym_torch.batch import Example
from gym_torch.metrics import Mean, Metric, Metrics, Ratio
from gym_torch.objective import Objective, Scores
from gym_torch.packing import PADDED, Layout
from gym_torch.prompt_responses import PromptResponses, ResponseBatch, lay_out

NOT_ARGUMENTS = WithReference.model_fields.keys() - {"beta"}  #: fields that are no argument of a loss


class PreferenceObjective(Objective[ResponseBatch]):
    """Base of the objectives over answers: write `prompt_responses` and `loss`, which applies `losses` to `arguments` and what it
    knows.

    The trainer says what the reference is, by `reference` or by `cached_log_probs`. Without either, as in a plan, every answer
    has the log-probability 0 under it.
    """

    reference: Callable[[ResponseBatch], Tensor] | None = None
    """From a batch to the log-probabilities of its targets under the reference, `[n]`, without a graph."""
    cached_log_probs: CachedLogProbs | None = None
    """What the reference said of each example before training."""

    def __init__(self, config: PreferenceAlgorithm, layout: Layout = PADDED) -> None:
        """Take the losses and their arguments from the options."""
        super().__init__(config, layout)
        self.losses: Callable[..., Tensor] = load_object(type(config).loss)
        self.arguments = config.model_dump(exclude=set(NOT_ARGUMENTS))

    @abstractmethod
    def prompt_responses(self, example: Example) -> PromptResponses:
        """Return the prompt and the answers of an example; the tokens of the answers are what the reference scores."""

    def collate(self, examples: Sequence[Example]) -> ResponseBatch:
        """Lay out the answers of all examples, those to one prompt behind a single copy of it."""
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


class PairObjective(PreferenceObjective):
    """A loss for each pair, and each pair of a step alike."""

    config: PairwisePreference

    def prompt_responses(self, example: Example) -> PromptResponses:
        """Return what both sides begin with, the chosen and the rejected answer."""
        return responses.prompt_responses(example)

    def weight(self, batch: ResponseBatch) -> float:
        """Return the number of pairs."""
        return batch.responses / 2

    def loss(self, policy: Scores[ResponseBatch], batch: ResponseBatch) -> tuple[Tensor, Metrics]:
        """Return the summed losses of the pairs, and how far apart their answers are."""
        log_probs, log_ratios = self.log_ratios(policy, batch)
        chosen, rejected = self.sides(log_ratios, batch)
        return self.summed(self.losses(chosen, rejected, **self.arguments), log_probs, log_ratios, batch)

    def summed(
        self, losses: Tensor, log_probs: Tensor, log_ratios: Tensor, batch: ResponseBatch
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return the sum of losses `[pairs]`, with the chosen answers learnt beside them, and what is logged."""
        if self.config.ftx:
            losses = losses - self.config.ftx * (batch.sums(log_probs) / batch.lengths)[0::2]
        log_ratios = log_ratios.detach()
        return losses.sum(), self.measures(log_probs.detach(), log_ratios, *self.sides(log_ratios, batch), batch)

    def sides(self, log_ratios: Tensor, batch: ResponseBatch) -> tuple[Tensor, Tensor]:
        """Return what is compared of the chosen and of the rejected answers, `[pairs]` each, from `[n]` log-ratios."""
        totals = batch.sums(log_ratios)
        each = totals / batch.lengths if type(self.config).per_token else totals
        return each[0::2], each[1::2]

    def measures(
        self, log_probs: Tensor, log_ratios: Tensor, chosen: Tensor, rejected: Tensor, batch: ResponseBatch
    ) -> dict[str, Metric]:
        """Return what is logged of a batch, as sums over pairs, or as sums and of how many."""
        beta, margins = self.config.beta, chosen - rejected
        right = half_for_ties(margins)
        lengths, totals = batch.lengths, batch.sums(log_probs)
        longer = (lengths[0::2] - lengths[1::2]).sign()
        taken = torch.where(longer > 0, right, 1 - right)  # whether the policy prefers the longer answer
        biased = (taken - (longer > 0).float()) * longer.abs()
        found: dict[str, Metric] = {
            "rewards/accuracies": Mean(right.sum()),
            "rewards/margins": Mean(beta * margins.sum()),
            "rewards/chosen": Mean(beta * chosen.sum()),
            "rewards/rejected": Mean(beta * rejected.sum()),
            "logps/chosen": Ratio.of(totals[0::2], lengths[0::2]),
            "logps/rejected": Ratio.of(totals[1::2], lengths[1::2]),
            "length_bias": Ratio.of(biased, longer.abs()),
        }
        if type(self.config).referenced:
            found["kl"] = Ratio.of(log_ratios**2 / 2, lengths)
        return found


class LengthDesensitized(PairObjective):
    """Tokens of an answer that lie beyond the length of the other one count less."""

    config: LDDPO

    def __init__(self, config: LDDPO, layout: Layout = PADDED) -> None:
        """Keep the weight of these tokens from the arguments of the loss."""
        super().__init__(config, layout)
        del self.arguments["ld_alpha"]

    def sides(self, log_ratios: Tensor, batch: ResponseBatch) -> tuple[Tensor, Tensor]:
        """Return the weighted sums of the chosen and of the rejected answers, `[pairs]` each."""
        lengths = batch.lengths.long()
        place = torch.arange(len(log_ratios), device=log_ratios.device) - (lengths.cumsum(0) - lengths)[batch.owner]
        common = lengths.view(-1, 2).amin(1)[batch.owner // 2]
        return super().sides(torch.where(place < common, log_ratios, self.config.ld_alpha * log_ratios), batch)
