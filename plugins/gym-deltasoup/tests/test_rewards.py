"""Rewards: whole points sum to the pool; Shapley values are those of the definition, and hold the axioms."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_core import GymError
from gym_deltasoup import DeltaSoup, DifferentialPrivacy
from gym_deltasoup.config.community import DeltaSoupConfig
from gym_deltasoup.rewards.apportionment import apportion
from gym_deltasoup.rewards.schemes import Known, rewards
from gym_deltasoup.rewards.shapley import exact, leave_one_out, truncated_monte_carlo

SHARES = st.dictionaries(st.text(min_size=1), st.floats(0, 1e300), min_size=1, max_size=40)


@given(SHARES, st.integers(0, 10**12))
@settings(max_examples=100, deadline=None)
def test_points_sum_to_the_pool_and_stay_within_one_of_the_quota(shares, pool):
    found = apportion(shares, pool)
    assert sum(found.values()) == pool and found.keys() == shares.keys()
    total = sum(map(Fraction, shares.values()))
    for name, share in shares.items():
        quota = Fraction(share) * pool / total if total else Fraction(pool, len(shares))
        assert math.floor(quota) <= found[name] <= math.ceil(quota)
    ranked = sorted(shares, key=shares.__getitem__)
    assert all(found[low] <= found[high] + 1 for low, high in itertools.pairwise(ranked))
    assert apportion(dict(reversed(shares.items())), pool) == found


def test_equal_remainders_go_to_the_names_that_come_first():
    assert apportion({"c": 1, "b": 1, "a": 1}, 10) == {"a": 4, "b": 3, "c": 3}
    assert apportion({"b": 0, "a": 0}, 3) == {"a": 2, "b": 1} and apportion({}, 5) == {}
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(GymError, match="the share of a is"):
            apportion({"a": wrong}, 5)


def test_scores_are_divided_as_published():
    quality, participation = {"alice": 0.9, "bob": 0.7, "charlie": 0.5}, {"alice": 0.8, "bob": 1.0, "charlie": 0.6}
    found = rewards(Known(quality, participation, {}, None), DeltaSoupConfig())
    assert found == {"alice": 397, "bob": 361, "charlie": 242}


def by_orders(players, value):
    """The definition by orders: the mean of what somebody adds over all orders in which they may come."""
    sums = dict.fromkeys(players, 0.0)
    for order in itertools.permutations(players):
        for place, player in enumerate(order):
            sums[player] += value(frozenset(order[: place + 1])) - value(frozenset(order[:place]))
    return {player: total / math.factorial(len(players)) for player, total in sums.items()}


GAMES = st.lists(st.floats(-10, 10), min_size=32, max_size=32)


def game(values, players):
    bit = {player: 1 << place for place, player in enumerate(players)}
    return lambda members: values[sum(bit[player] for player in members)]


@given(GAMES, GAMES)
@settings(max_examples=20, deadline=None)
def test_shapley_values_are_those_of_all_orders_and_hold_the_axioms(first, second):
    players = "abcde"
    one, other = game(first, players), game(second, players)
    found = exact(players, one)
    assert found == pytest.approx(by_orders(players, one), abs=1e-9)
    assert sum(found.values()) == pytest.approx(first[31] - first[0], abs=1e-9), "efficiency"
    both = exact(players, lambda members: one(members) + 2 * other(members))
    others = exact(players, other)
    assert both == pytest.approx({each: found[each] + 2 * others[each] for each in players}, abs=1e-8), "additivity"
    swapped = str.maketrans("ab", "ba")
    mirrored = exact(players, lambda members: one(frozenset("".join(members).translate(swapped))))
    assert mirrored["a"] == pytest.approx(found["b"], abs=1e-9), "symmetry"
    assert exact(players, lambda members: one(members - {"c"}))["c"] == pytest.approx(0, abs=1e-12), "nobody's share"


def test_known_games():
    gloves = exact("lmr", lambda members: float(min("l" in members, len(members & {"m", "r"}))))
    assert gloves == pytest.approx({"l": 2 / 3, "m": 1 / 6, "r": 1 / 6}, abs=1e-12)
    worth = {"a": 3.0, "b": -1.0, "c": 0.5}
    additive = lambda members: sum(worth[each] for each in members)  # noqa: E731
    assert exact("abc", additive) == pytest.approx(worth, abs=1e-12)
    assert leave_one_out("abc", additive) == pytest.approx(worth, abs=1e-12)
    assert truncated_monte_carlo("abc", additive, 2, 0, tolerance=0) == pytest.approx(worth, abs=1e-12)


def test_the_estimate_nears_the_value_sums_to_it_and_is_repeatable():
    players = [f"p{number:02}" for number in range(10)]
    value = lambda members: sum(int(each[1:]) + 1 for each in members) ** 0.5  # noqa: E731
    wanted = exact(players, value)
    found = truncated_monte_carlo(players, value, 400, 3, tolerance=0)
    assert found == pytest.approx(wanted, abs=0.05)
    assert sum(found.values()) == pytest.approx(value(frozenset(players)), abs=1e-9)
    assert found == truncated_monte_carlo(players[::-1], value, 400, 3, tolerance=0)
    asked = []
    truncated_monte_carlo(players, lambda members: asked.append(members) or min(1.0, len(members) / 2), 20, 0)
    assert max(map(len, asked[2:])) <= 2, "what adds nothing any more is not valued"


@pytest.mark.parametrize("options", [{"differential_privacy": True}, {"method": DifferentialPrivacy()}])
@pytest.mark.parametrize("scheme", ["leave_one_out", "shapley"])
def test_no_points_are_given_for_noise(scheme, options, tmp_path):
    """Each coalition would be merged with new noise, which no ledger accounts for."""
    wanted = DeltaSoupConfig(folder=str(tmp_path / "soup"), reward_scheme=scheme, **options)
    with pytest.raises(GymError, match="each of these merges has new noise"):
        DeltaSoup(wanted, evaluate=lambda artifact: 1.0)
    assert not (tmp_path / "soup").exists()
    for other in ({"reward_scheme": "score"}, {"enable_rewards": False}):
        if "method" in options:
            with pytest.raises(GymError, match="keep an account of several rounds"):
                DeltaSoup(wanted.model_copy(update=other), evaluate=lambda artifact: 1.0)
        else:
            DeltaSoup(wanted.model_copy(update=other), evaluate=lambda artifact: 1.0).close()
