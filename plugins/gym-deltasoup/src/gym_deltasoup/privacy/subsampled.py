"""What training with noise on every gradient costs (DP-SGD, Abadi et al. 2016), in the terms of the ledger.

Loss of privacy is composed by opacus (Gopi et al. 2021). The ledger adds up `mu`, so the least `mu` is sought that is worse at
every epsilon, up to a `slack` of probability: `delta(eps) <= slack + (1 - slack) delta_mu(eps)`. Then whatever is composed with
the training costs no more than the same with a Gaussian mechanism of this `mu`, and the slack (Dong et al. 2019, section 3).
"""

from __future__ import annotations

from math import inf, nextafter, sqrt

import numpy as np
from opacus.accountants.analysis.prv import (
    DiscretePRV,
    Domain,
    PoissonSubsampledGaussianPRV,
    TruncatedPrivacyRandomVariable,
    compose_heterogeneous,
    compute_safe_domain_size,
    discretize,
)

from gym_core import GymError
from gym_deltasoup.gaussian_mechanism import mu_of

GRID = 1.1  #: ratio of neighbouring deltas that are looked at
ERROR = 0.01  #: of an epsilon, counted against the contributor


def mu_of_training(noise: float, rate: float, steps: int, slack: float) -> float:
    """Return a `mu` that is no better than training, up to the slack.

    Args:
        noise: standard deviation of the noise, in norms that gradients are cut to.
        rate: probability with which a record is in a batch.
        steps: batches.
        slack: probability, far below the delta of the ledger.

    Raises GymError for numbers that describe no such training.

    """
    if not (noise > 0 and 0 < rate <= 1 and steps >= 1 and 0 < slack < 1e-3):
        raise GymError(f"noise {noise}, rate {rate}, {steps} steps and slack {slack} describe no training", key="noise")
    whole = sqrt(steps) / noise  # with every row in every batch, which is no better
    if rate == 1:
        return whole
    found, small = composed_loss(noise, rate, steps, slack / 10), slack / 10

    def epsilon(delta: float) -> float:
        return float(found.compute_epsilon(delta, small, ERROR)[2])

    least, delta, before = 0.0, slack, epsilon(slack)
    while before > 0:  # between two deltas of the grid, epsilon is at most that of the smaller one
        delta *= GRID
        if delta >= 1:
            return whole
        least = max(least, nextafter(mu_of(before, (delta - slack) / (1 - slack)), inf))
        before = epsilon(delta) if delta + small < 1 else 0.0
    return min(least, whole)


def composed_loss(noise: float, rate: float, steps: int, error: float) -> DiscretePRV:
    """Return the loss of privacy of all steps together, to an error in delta."""
    each = PoissonSubsampledGaussianPRV(rate, noise)
    most = compute_safe_domain_size([each], [steps], ERROR, error)
    domain = Domain.create_aligned(-most, most, ERROR / sqrt(steps * np.log(12 / error) / 2))
    cut = discretize(TruncatedPrivacyRandomVariable(each, domain.t_min, domain.t_max), domain)
    return compose_heterogeneous([cut], [steps])
