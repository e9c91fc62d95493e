"""A batch of completions, each with what was recorded where it was sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from gym_rl.formulas.segment_sums import means
from gym_torch.prompt_responses import ResponseBatch


@dataclass(frozen=True, kw_only=True)
class RolloutBatch(ResponseBatch):
    """A batch of completions; its targets are their tokens. For `columns` see `gym_rl.rollouts.experience`."""

    share: float  #: of the completions of the step, see `gym_rl.rollouts.experience.Rollout`
    fresh: bool  #: whether the policy is still the one that sampled
    entropy: bool = False  #: whether the entropy at each target counts in the loss
    full_kl: bool = False  #: whether the KL divergence from the reference over the whole vocabulary does

    @property
    def sampling_log_probs(self) -> Tensor:
        """Log-probability of each target where it was sampled, `[n]`."""
        return self.columns["sampling_log_probs"]

    @property
    def old_log_probs(self) -> Tensor:
        """Log-probability of each target under the policy when the round began, `[n]`."""
        return self.columns["old_log_probs"]

    @property
    def advantages(self) -> Tensor:
        """How much better than expected each target was, `[n]`."""
        return self.columns["advantages"]

    @property
    def sequence_advantages(self) -> Tensor:
        """Mean advantage of each completion, `[completions]`; where its tokens have one in common, exactly that."""
        # In fp64 a sum of equal fp32 numbers is exact, and so is their mean.
        return means(self.advantages.double(), self.owner, self.responses).to(self.advantages.dtype)

    def with_columns(self, columns: Mapping[str, Tensor]) -> Self:
        """Return the batch with more columns."""
        return replace(self, columns={**self.columns, **columns})
