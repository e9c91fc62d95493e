"""From labelled responses to a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gym_data.examples import UnpairedExample
from gym_preference.accuracy import accuracies
from gym_preference.objective import PreferenceObjective
from gym_preference.unpaired.config.base import UnpairedPreference
from gym_preference.unpaired.samples_with_reference_point import UnpairedSample
from gym_torch.batch import Piece
from gym_torch.inputs_beside import inputs_of
from gym_torch.metrics import Mean, Metric, Metrics, Ratio
from gym_torch.objective import Scores
from gym_torch.prompt_responses import PromptResponses, ResponseBatch
from gym_torch.source import Step


class UnpairedObjective(PreferenceObjective[UnpairedExample]):
    """A loss for each response, and each response of a step alike."""

    config: UnpairedPreference

    def prompt_responses(self, example: UnpairedExample) -> PromptResponses:
        """Return the response behind its own prompt, which no other response shares."""
        response = Piece(example.id, example.tokens, example.trained, *inputs_of(example))
        return PromptResponses(example.tokens[:0], (response,))

    def collate(self, examples: Sequence[UnpairedExample]) -> ResponseBatch:
        """Lay the responses out, with their labels and what their log-ratios are measured from; 0 where nobody says."""
        batch = super().collate(examples)
        told = [one if isinstance(one, UnpairedSample) else UnpairedSample(**vars(one)) for one in examples]
        columns = {
            name: torch.tensor([vars(one)[name] for one in told])
            for name in ("desirable", "reference_point", "share", "ftx_scale")
        }
        return replace(batch, columns={**batch.columns, **columns})

    def weight(self, batch: ResponseBatch) -> float:
        """Return the number of responses."""
        return float(batch.responses)

    def loss(self, policy: Scores[ResponseBatch], batch: ResponseBatch) -> tuple[Tensor, Metrics]:
        """Return the summed losses of the responses, and how far apart the good ones are from the others."""
        log_probs, log_ratios = self.log_ratios(policy, batch)
        ratios, desirable, reference_point = (
            batch.sums(log_ratios),
            batch.columns["desirable"],
            batch.columns["reference_point"],
        )
        losses = self.losses(ratios, desirable, reference_point, **self.arguments)
        if self.config.ftx:
            counts = self.config.ftx * desirable * batch.columns["ftx_scale"]
            losses = losses - counts * batch.sums(log_probs) / batch.lengths
        return losses.sum(), self.measures(log_probs.detach(), ratios.detach(), batch)

    @torch.no_grad()
    def total(
        self, policy: Scores[ResponseBatch], step: Step[UnpairedExample], device: torch.device
    ) -> tuple[float, float]:
        """Return the sum of the log-ratios of the responses of this process's part of a step, and how many they are."""
        total, count = 0.0, 0.0
        for number, examples in enumerate(step.batches, start=1):
            batch = self.collate(examples).to(device)
            _, ratios = self.log_ratios(policy, batch)
            if number <= len(step.batches) - step.spare:
                total, count = total + float(ratios.double().sum()), count + batch.responses
        return total, count

    def measures(self, log_probs: Tensor, ratios: Tensor, batch: ResponseBatch) -> dict[str, Metric]:
        """Return what is logged of a batch: of each kind of response where the step has one, and the margin where it has both."""
        rewards, totals, lengths = self.config.beta * ratios, batch.sums(log_probs), batch.lengths
        desirable, reference_point, share = (batch.columns[name] for name in ("desirable", "reference_point", "share"))
        gains = torch.where(desirable, ratios - reference_point, reference_point - ratios)
        found: dict[str, Metric] = {
            "rewards/accuracies": Mean(accuracies(gains).sum()),
            "rewards/margins": Ratio.of(share * rewards, share != 0),
        }
        for side, mine in {"chosen": desirable.to(rewards.dtype), "rejected": (~desirable).to(rewards.dtype)}.items():
            found[f"rewards/{side}"] = Ratio.of(mine * rewards, mine)
            found[f"logps/{side}"] = Ratio.of(mine * totals, mine * lengths)
            found[f"ref_logps/{side}"] = Ratio.of(mine * (totals - ratios), mine * lengths)
        return found
