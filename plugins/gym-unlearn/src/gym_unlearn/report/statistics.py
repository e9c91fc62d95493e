"""Numbers that compare models by what they say of rows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import harmonic_mean

import numpy as np

from gym_unlearn.report.measures import Floats


def utility(scores: Sequence[float]) -> float:
    """Return the harmonic mean of scores from 0 to 1 (the model utility of TOFU): 0 where one of them is."""
    return float(harmonic_mean([max(0.0, score) for score in scores]))


def forget_quality(unlearned: Floats, retrained: Floats) -> float:
    """Return the p-value of the two-sample Kolmogorov-Smirnov test: small where two models tell rows apart differently."""
    from scipy.stats import ks_2samp

    return float(ks_2samp(unlearned, retrained).pvalue)


def auc(members: Floats, others: Floats) -> float:
    """Return how often a member has a higher score than another row; a tie counts half."""
    apart = members[:, None] - others[None, :]
    return float((np.sign(apart) + 1).mean() / 2)


def privacy_leakage(found: float, retrained: float) -> float:
    """Return PrivLeak of MUSE (arXiv:2407.06460), as a share: how far an AUC is from that of a retrained model.

    MUSE takes the AUC of telling what was never seen, 1 minus this one. Below 0 the rows still look like members, above 0 like
    rows that somebody took out. Not a number where the retrained model tells all of them apart.
    """
    return (retrained - found) / (1 - retrained) if retrained < 1 else float("nan")
