"""The objective of pairs: a loss of how much more the chosen response gained than the rejected one."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_data.examples import Pair
from gym_preference.accuracy import accuracies
from gym_preference.config import PairwisePreference
from gym_preference.objective import PreferenceObjective
from gym_preference.pairwise import pair_to_prompt_responses
from gym_preference.pairwise.config.ld_dpo import LDDPO
from gym_torch.metrics import Mean, Metric, Metrics, Ratio
from gym_torch.objective import Scores
from gym_torch.packing import PADDED, Layout
from gym_torch.prompt_responses import PromptResponses, ResponseBatch


class PairObjective(PreferenceObjective[Pair]):
    """A loss for each pair, and each pair of a step alike."""

    config: PairwisePreference

    def prompt_responses(self, example: Pair) -> PromptResponses:
        """Return what both sides begin with, the chosen and the rejected response."""
        return pair_to_prompt_responses.prompt_responses(example)

    def weight(self, batch: ResponseBatch) -> float:
        """Return the number of pairs."""
        return batch.responses / 2

    def loss(self, policy: Scores[ResponseBatch], batch: ResponseBatch) -> tuple[Tensor, Metrics]:
        """Return the summed losses of the pairs, and how far apart their responses are."""
        log_probs, log_ratios = self.log_ratios(policy, batch)
        chosen, rejected = self.sides(log_ratios, batch)
        return self.summed(self.losses(chosen, rejected, **self.arguments), log_probs, log_ratios, batch)

    def summed(
        self, losses: Tensor, log_probs: Tensor, log_ratios: Tensor, batch: ResponseBatch
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return the sum of losses `[pairs]`, with the SFT loss of the chosen responses, and what is logged."""
        if self.config.ftx:
            losses = losses - self.config.ftx * (batch.sums(log_probs) / batch.lengths)[0::2]
        log_ratios = log_ratios.detach()
        return losses.sum(), self.measures(log_probs.detach(), log_ratios, *self.sides(log_ratios, batch), batch)

    def sides(self, log_ratios: Tensor, batch: ResponseBatch) -> tuple[Tensor, Tensor]:
        """Return what is compared of the chosen and of the rejected responses, `[pairs]` each, from `[n]` log-ratios."""
        totals = batch.sums(log_ratios)
        each = totals / batch.lengths if type(self.config).per_token else totals
        return each[0::2], each[1::2]

    def measures(
        self, log_probs: Tensor, log_ratios: Tensor, chosen: Tensor, rejected: Tensor, batch: ResponseBatch
    ) -> dict[str, Metric]:
        """Return what is logged of a batch, as sums over pairs, or as sums and of how many."""
        beta, margins = self.config.beta, chosen - rejected
        right = accuracies(margins)
        lengths, totals = batch.lengths, batch.sums(log_probs)
        longer = (lengths[0::2] - lengths[1::2]).sign()
        taken = torch.where(longer > 0, right, 1 - right)  # whether the policy prefers the longer response
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
            known = totals - batch.sums(log_ratios)
            found["ref_logps/chosen"] = Ratio.of(known[0::2], lengths[0::2])
            found["ref_logps/rejected"] = Ratio.of(known[1::2], lengths[1::2])
            found["kl"] = Ratio.of(log_ratios**2 / 2, lengths)
        return found


class LengthDesensitized(PairObjective):
    """Tokens of a response that lie beyond the length of the other one count less."""

    config: LDDPO

    def __init__(self, config: LDDPO, layout: Layout = PADDED) -> None:
        """Keep the weight of these tokens from the arguments of the loss."""
        super().__init__(config, layout)
        del self.arguments["ld_alpha"]

    def sides(self, log_ratios: Tensor, batch: ResponseBatch) -> tuple[Tensor, Tensor]:
        """Return the weighted sums of the chosen and of the rejected responses, `[pairs]` each."""
        lengths = batch.lengths.long()
        place = torch.arange(len(log_ratios), device=log_ratios.device) - (lengths.cumsum(0) - lengths)[batch.owner]
        common = lengths.view(-1, 2).amin(1)[batch.owner // 2]
        return super().sides(torch.where(place < common, log_ratios, self.config.ld_alpha * log_ratios), batch)
