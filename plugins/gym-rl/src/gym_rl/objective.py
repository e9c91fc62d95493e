"""From completions to a batch in which each prompt stands once, and from a batch to what an algorithm's loss is made of."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gym_rl.config.base import PolicyGradient
from gym_rl.formulas.importance_ratio import log_ratio, token_ratio
from gym_rl.formulas.kl import ESTIMATORS
from gym_rl.formulas.loss_aggregation import AGGREGATIONS
from gym_rl.formulas.off_policy_correction import CORRECTIONS, off_policy_mask
from gym_rl.policy import RolloutPolicy
from gym_rl.rollouts.batch import RolloutBatch
from gym_rl.rollouts.experience import ENTROPY_COEF, RAGGED, Rollout
from gym_rl.rollouts.high_entropy import CHOSEN
from gym_rl.rollouts.routing_replay import lay_out_experts
from gym_rl.rollouts.top_p_mask import top_p_sets
from gym_torch.metrics import Largest, Metric, Metrics, Ratio
from gym_torch.objective import Objective, Scores
from gym_torch.packing import PADDED, Layout
from gym_torch.policy import Policy
from gym_torch.prompt_responses import PromptResponses, lay_out, segments

MISMATCH = "sampling/sampling_logp_difference"  #: of sampler and trainer, in the log


class PolicyObjective(Objective[RolloutBatch, Rollout]):
    """Base of the objectives: write `tokens`; `loss_agg_mode` of the options says how the losses of tokens are aggregated."""

    policy: type[Policy[Any]] = RolloutPolicy

    def __init__(self, config: PolicyGradient, layout: Layout = PADDED) -> None:
        """Hold the options; the temperature that completions are drawn at is the one they are scored at."""
        super().__init__(config, layout)
        self.temperature = config.temperature
        # what is taken from rewards is no term of the loss
        self.penalty = ESTIMATORS.get(config.kl_estimator) if config.beta else None
        self.aggregate = AGGREGATIONS[config.loss_agg_mode](config.max_new_tokens)
        self.correction = CORRECTIONS[config.importance_sampling_correction]

    @abstractmethod
    def tokens(self, log_probs: Tensor, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Return `loss` and perhaps other measures of each token, `[n]`.

        `batch.old_log_probs` are the log-probabilities under the policy when the round began.
        """

    def collate(self, rollouts: Sequence[Rollout]) -> RolloutBatch:
        """Lay out completions, those to one prompt behind a single copy of it."""
        members = [tuple(group) for _, group in groupby(rollouts, key=lambda rollout: rollout.group)]
        groups = [PromptResponses(own[0].prompt.tokens, own, own[0].prompt.id) for own in members]
        columns = {
            name: torch.from_numpy(np.concatenate([rollout.columns[name] for rollout in rollouts]))
            for name in rollouts[0].columns
            if name not in ("experts", *RAGGED.values())
        }
        batch = lay_out(self.layout, groups, columns)
        experts = lay_out_experts(self.layout, *segments(groups), rollouts)
        return RolloutBatch(
            **vars(replace(batch, nucleus=top_p_sets(rollouts), experts=experts)),
            share=sum(rollout.share for rollout in rollouts),
            fresh=rollouts[0].fresh,
            entropy=ENTROPY_COEF in columns,
            full_kl=self.config.full_kl,
        )

    def weight(self, batch: RolloutBatch) -> float:
        """Return the share of the batch in the denominator of its step."""
        return self.aggregate.weight(batch.owner, batch.responses, batch.share)

    def loss(self, policy: Scores[RolloutBatch], batch: RolloutBatch) -> tuple[Tensor, Metrics]:
        """Return the aggregated loss, and means over tokens: what `tokens` measures, and how far the policy has gone."""
        said = policy(batch)
        log_probs = said[0] if batch.entropy or batch.full_kl else said
        batch = batch.with_columns({"old_log_probs": batch.columns.get("old_log_probs", log_probs.detach())})
        terms = {**self.tokens(log_probs, batch), **ratio_metrics(log_probs.detach(), batch)}
        loss = terms.pop("loss")
        if self.config.off_policy_mask_threshold is not None:
            kept = self._kept(log_probs.detach(), batch, self.config.off_policy_mask_threshold)
            loss = loss.masked_fill(~kept, 0.0)
            terms["off_policy_mask_ratio"] = (~kept).float()
        if CHOSEN in batch.columns:
            loss = loss.masked_fill(~batch.columns[CHOSEN], 0.0)
        apart = log_ratio(batch.old_log_probs, batch.sampling_log_probs)
        terms["sampling/importance_sampling_ratio/mean"] = self.correction(apart, batch.owner, batch.responses)
        loss = loss * terms["sampling/importance_sampling_ratio/mean"]
        # Not weighed by the correction: a weight of 0 would let go of the reference, and k3_is has a ratio of its own.
        if self.penalty:
            reference, sampled = batch.columns["ref_log_probs"], batch.sampling_log_probs
            loss = loss + self.config.beta * self.penalty(log_probs, reference, sampled)
        if batch.entropy:  # that, and the divergence, are of all tokens, not of the one that somebody sampled
            loss = loss - batch.columns[ENTROPY_COEF] * said[1]
        if batch.full_kl:
            loss, terms["kl"] = loss + self.config.beta * said[2], said[2].detach()
        metrics: dict[str, Metric] = {
            name: Ratio(each.sum(), each.new_tensor(len(each))) for name, each in terms.items()
        }
        for name, among in {"ratio/max": "ratio/mean", f"{MISMATCH}/max": f"{MISMATCH}/mean"}.items():
            if among in terms:
                metrics[name] = Largest(terms[among].amax() if len(loss) else loss.new_zeros(()))
        return self.aggregate.total(loss, batch.owner, batch.responses), metrics

    def _kept(self, log_probs: Tensor, batch: RolloutBatch, bound: float) -> Tensor:
        apart = log_ratio(log_probs, batch.sampling_log_probs)
        return off_policy_mask(apart, batch.advantages, batch.owner, batch.responses, bound)


def ratio_metrics(log_probs: Tensor, batch: RolloutBatch) -> dict[str, Tensor]:
    """Return, for each token, how far the policy is from the one that sampled and from itself when the round began."""
    apart, ratio = log_ratio(log_probs, batch.sampling_log_probs), token_ratio(log_probs, batch.old_log_probs)
    found = {"approx_kl": apart.exp() - 1 - apart, "ratio/mean": ratio, "ratio/abs_dev": (ratio - 1).abs()}
    return found | ({f"{MISMATCH}/mean": apart.abs()} if batch.fresh else {})
