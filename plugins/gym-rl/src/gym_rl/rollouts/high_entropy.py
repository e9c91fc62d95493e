"""Tokens of high entropy: where the policy was unsure what to write, and what is worth learning (arXiv:2506.01939)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from gym_rl.rollouts.experience import Experience

ENTROPIES, CHOSEN = "entropies", "high_entropy"  #: columns: what is computed, and what is kept of it


def choose_high_entropy(experience: Experience, counted: Tensor, share: float) -> Experience:
    """Return a round with the column `high_entropy`, bool, in place of `entropies`: the `share` of tokens that have most.

    They are found among those that `counted` says, `[sum of lengths]` bool, of the whole round, so that neither processes nor how
    it is cut matter; what is as unsure as the last of them is in too. A round without entropies is left as it is.
    """
    columns: dict[str, Any] = dict(experience.columns)
    found = columns.pop(ENTROPIES, None)
    if found is None:
        return experience
    rivals = found[counted & ~found.isnan()].double().numpy()
    least = float(np.quantile(rivals, 1 - share)) if len(rivals) else 0.0
    return replace(experience, columns={**columns, CHOSEN: found.double() >= least})
