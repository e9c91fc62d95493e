"""Forgetting and keeping by the log-probabilities of answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_core.component import load_object
from gym_data.examples import UnpairedExample
from gym_preference.objective import ReferencedObjective
from gym_torch.batch import Piece
from gym_torch.compared_policy import ComparedPolicy, beside_reference
from gym_torch.metrics import Metric, Metrics, Ratio
from gym_torch.objective import Scores
from gym_torch.packing import PADDED, Layout
from gym_torch.policy import Policy
from gym_torch.prompt_responses import PromptResponses, ResponseBatch, lay_out
from gym_unlearn.config import Unlearning
from gym_unlearn.samples import UnlearnSample


class DistributionPolicy(ComparedPolicy[ResponseBatch]):
    """A policy that says how far its distributions are from those of its reference."""

    def compare(self, logits: Tensor, other: Tensor, batch: ResponseBatch, rows: slice) -> Tensor:
        """Return log p of each label, the same under the reference, and KL(reference || policy) there, `[rows, 3]`."""
        own, targets = logits.log_softmax(1), batch.targets[rows, None]
        known, kl = beside_reference(own, other)
        return torch.stack([own.gather(1, targets)[:, 0], known.gather(1, targets)[:, 0], kl], 1)


class AnswersObjective(ReferencedObjective[UnpairedExample]):
    """Base of the objectives over answers to forget and answers to keep: write `loss`, which ends with `weighed`."""

    config: Unlearning

    def check(self, model: PreTrainedModel) -> None:
        """Raise GymError where this cannot be done with a model. Default: it can."""

    def prompt_responses(self, example: UnpairedExample) -> PromptResponses:
        """Return the answer behind its own prompt, which no other answer shares."""
        return PromptResponses(example.tokens[:0], (Piece(example.id, example.tokens, example.trained),))

    def collate(self, examples: Sequence[UnpairedExample]) -> ResponseBatch:
        """Lay the answers out, with their labels and what they count; what the reference said is known of those to forget."""
        told = [one if isinstance(one, UnlearnSample) else UnlearnSample(**vars(one)) for one in examples]
        columns = {
            "keep": torch.tensor([one.desirable for one in told]),
            "share": torch.tensor([one.share for one in told], dtype=torch.float32),
        }
        if self.cached_log_probs is not None:
            columns["reference"] = torch.cat([self._known(one) for one in told])
        return lay_out(self.layout, [self.prompt_responses(one) for one in told], columns)

    def _known(self, one: UnlearnSample) -> Tensor:
        assert self.cached_log_probs is not None
        if one.desirable:
            return torch.zeros(int(one.trained[1:].sum()))
        return self.cached_log_probs.of(self.prompt_responses(one))

    def weight(self, batch: ResponseBatch) -> float:
        """Return the number of answers."""
        return float(batch.responses)

    def weighed(self, forget: Tensor, retain: Tensor, batch: ResponseBatch) -> tuple[Tensor, dict[str, Metric]]:
        """Return the summed loss, and both kinds of losses by themselves.

        Args:
            forget: `[samples]`, what each answer costs that is to be forgotten; others are not looked at.
            retain: the same of those to keep.
            batch: says which are which, and what they count.

        """
        keep, share = batch.columns["keep"], batch.columns["share"]
        gamma, alpha = self.config.weights()
        # Not by multiplication: what is not looked at may be infinite.
        zero = forget.new_zeros(())
        losses = torch.where(keep, alpha * retain if alpha else zero, gamma * forget if gamma else zero)
        found: dict[str, Metric] = {}
        for name, mine, values in (("forget_loss", ~keep, forget), ("retain_loss", keep, retain)):
            found[name] = Ratio.of(torch.where(mine, values.detach(), zero), mine)
        return (share * losses).sum(), found


class UnlearnObjective(AnswersObjective):
    """The losses of answers to forget, and the likelihood of those to keep, or their distance from the reference."""

    def __init__(self, config: Unlearning, layout: Layout = PADDED) -> None:
        """Take the loss and its arguments from the options."""
        super().__init__(config, layout)
        self.of_forgetting: Callable[..., Tensor] = load_object(type(config).loss)
        self.arguments = config.model_dump(include=set(config.loss_options))
        self.policy: type[Policy[Any]] = DistributionPolicy if config.compares() else Policy

    def loss(self, policy: Scores[ResponseBatch], batch: ResponseBatch) -> tuple[Tensor, Metrics]:
        """Return the summed losses of the answers, and how probable both kinds are."""
        lengths = batch.lengths
        if self.config.compares():
            log_probs, known, kl = policy(batch)
            retain = batch.sums(kl) / lengths
        else:
            log_probs, log_ratios = self.log_ratios(policy, batch)
            known = (log_probs - log_ratios).detach()
            retain = -batch.sums(log_probs) / lengths
        totals = batch.sums(log_probs)
        forget = self.of_forgetting(totals, batch.sums(known), lengths, **self.arguments)
        loss, found = self.weighed(forget, retain, batch)
        return loss, {**found, **probabilities(totals.detach() / lengths, batch.columns["keep"])}


def probabilities(means: Tensor, keep: Tensor) -> dict[str, Metric]:
    """Return how probable answers are: exp of the mean log-probability of a token, averaged over the answers of each kind."""
    return {
        name: Ratio.of(means.exp() * mine, mine)
        for name, mine in (("forget_probability", ~keep), ("retain_probability", keep))
    }
