"""What points are given for: each scheme is a function of what is known of a round, to a share for each contributor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gym_deltasoup.config.community import DeltaSoupConfig
from gym_deltasoup.rewards import shapley
from gym_deltasoup.rewards.apportionment import apportion
from gym_deltasoup.rewards.shapley import Value


@dataclass(frozen=True)
class Known:
    """A round, as far as rewards ask. Contributors that are to have nothing are not in it."""

    quality: Mapping[str, float]  #: of each contributor: the share of the base's score that it keeps, at most 1
    participation: Mapping[str, float]  #: 0 to 1
    cosine: Mapping[str, float]  #: of each change to the result
    value: Value | None  #: how good what a coalition makes is; None where nothing is evaluated


@dataclass(frozen=True)
class Scheme:
    """A way to share."""

    shares: Callable[[Known, DeltaSoupConfig], Mapping[str, float]]
    values_coalitions: bool = False  #: whether it merges and evaluates what some of the members contributed


def rewards(known: Known, config: DeltaSoupConfig) -> dict[str, int]:
    """Return points that sum to the pool; shares below zero count as zero."""
    shares = SCHEMES[config.reward_scheme].shares(known, config)
    return apportion({name: max(0.0, share) for name, share in shares.items()}, config.reward_pool)


def _score(known: Known, config: DeltaSoupConfig) -> dict[str, float]:
    return {
        name: config.quality_weight * quality + config.participation_weight * known.participation[name]
        for name, quality in known.quality.items()
    }


def _cosine(known: Known, config: DeltaSoupConfig) -> dict[str, float]:
    return dict(known.cosine)


def _leave_one_out(known: Known, config: DeltaSoupConfig) -> dict[str, float]:
    assert known.value is not None, "a scheme that values coalitions is given an evaluation"
    return shapley.leave_one_out(sorted(known.quality), known.value)


def _shapley(known: Known, config: DeltaSoupConfig) -> dict[str, float]:
    assert known.value is not None, "a scheme that values coalitions is given an evaluation"
    players = sorted(known.quality)
    if len(players) <= shapley.EXACT:
        return shapley.exact(players, known.value)
    return shapley.truncated_monte_carlo(players, known.value, config.shapley_permutations, config.seed)


SCHEMES: dict[str, Scheme] = {
    "score": Scheme(_score),
    "leave_one_out": Scheme(_leave_one_out, values_coalitions=True),
    "shapley": Scheme(_shapley, values_coalitions=True),
    "gradient_similarity": Scheme(_cosine),
}
