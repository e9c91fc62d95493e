"""What robust rules promise under attack, on vectors: bounds of the literature, hulls, preconditions, and broken inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gym_deltasoup as soup
from gym_core import GymError
from gym_deltasoup import merge_vectors
from gym_deltasoup.attacks.vectors import ATTACKS, alie, gaussian, ipm, not_a_number, sign_flip, z_max
from gym_deltasoup.merging.updates import Vectors


def kappa_of(name: str, n: int, f: int) -> float:
    """Return the largest kappa that Allouah et al. 2023, table 1 and lemma 5, give for a rule."""
    q = f / (n - 2 * f)
    rules = {"trimmed_mean": 6 * q * (1 + q), "krum": 6 * (1 + q), "median": 4 * (1 + q) ** 2}
    rules["geometric_median"] = rules["median"]
    return rules[name.removeprefix("nnm ")] if name[:3] != "nnm" else 8 * f / (n - f) * (rules[name[4:]] + 1)


BOUNDED = {
    "trimmed_mean": soup.TrimmedMean(),
    "median": soup.Median(),
    "krum": soup.Krum(),
    "geometric_median": soup.GeometricMedian(max_iterations=60),
    "nnm trimmed_mean": soup.NNM(),
    "nnm median": soup.NNM(rule=soup.Median()),
}


def draws(number: int) -> tuple[Tensor, int]:
    """Return honest inputs, and how many hostile ones come to them."""
    draw = torch.Generator().manual_seed(number)
    n = int(torch.randint(5, 18, (), generator=draw))
    f = int(torch.randint(1, (n - 3) // 2 + 1, (), generator=draw))
    scale = 10 ** (2 * torch.rand((), generator=draw, dtype=torch.float64) - 1)
    middle = torch.randn(6, generator=draw, dtype=torch.float64)
    return middle + scale * torch.randn(n - f, 6, generator=draw, dtype=torch.float64), f


@pytest.mark.parametrize("count", [20, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BOUNDED)
def test_no_attack_exceeds_the_bound_of_the_literature(name: str, count: int):
    """`|F - mean|^2 <= kappa mean_i |x_i - mean|^2` over the honest inputs."""
    for attack in ATTACKS.values():
        for number in range(count):
            honest, f = draws(number)
            values = torch.cat([honest, attack(honest, f)])
            found = merge_vectors(BOUNDED[name], values, f).vector
            spread = float(((honest - honest.mean(0)) ** 2).sum(1).mean())
            away = float(((found - honest.mean(0)) ** 2).sum())
            assert away <= kappa_of(name, len(values), f) * spread * (1 + 1e-9), (number, f)


def error(merger: soup.Merger, honest: Tensor, hostile: Tensor) -> float:
    """Return how far the result is from the mean of the honest inputs, in norms of that."""
    bad = len(hostile) if merger.tolerates(1000) else 0
    found = merge_vectors(merger, torch.cat([honest, hostile]), bad).vector
    return float((found - honest.mean(0)).norm() / honest.mean(0).norm())


@pytest.fixture(scope="module")
def honest() -> Tensor:
    """Return 70 honest inputs with as much noise as signal: of 100, 30 are hostile."""
    draw = torch.Generator().manual_seed(0)
    return 1 + torch.randn(70, 1000, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("merger", [soup.NNM(), soup.ByzantineRobust()], ids=lambda each: type(each).__name__)
def test_the_default_is_near_the_honest_mean(honest, merger):
    attacks = {
        "sign flip": sign_flip(honest, 30),
        "ipm": ipm(honest, 30),
        "alie 1.5": alie(honest, 30, 1.5),
        "gaussian": gaussian(honest, 30),
    }
    found = {name: error(merger, honest, hostile) for name, hostile in attacks.items()}
    assert max(found.values()) <= 0.10, found
    worst = max(
        error(merger, honest, attack(honest, 30, tau))
        for tau in (0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 50.0)
        for attack in (ipm, alie)
    )
    assert worst <= 0.50, worst


@pytest.mark.parametrize("noise", [0.0, 0.2], ids=["equal", "near"])
def test_copies_of_one_input_count_once(honest, noise):
    """Also with a little noise each; without that rule they move the default further than the mean."""
    few = honest[:14]
    draw = torch.Generator().manual_seed(7)
    copies = few[:1] + noise * torch.randn(6, 1000, generator=draw, dtype=torch.float64)
    found = {
        each.copy_radius: error(each, few, copies)
        for each in (soup.ByzantineRobust(), soup.ByzantineRobust(copy_radius=0))
    }
    assert found[0.5] < 0.6 * error(soup.UniformSoup(), few, copies)
    assert found[0] > 1.4 * found[0.5] if noise else found[0] == found[0.5]
    values = torch.cat([few, copies])
    told = merge_vectors(soup.ByzantineRobust(), values, 6).report
    assert told["copies"] == [["0", *map(str, range(14, 20))]] and told["tolerated_byzantine"] == 6
    crowded = merge_vectors(soup.ByzantineRobust(), values, 9).report
    assert "copies" not in crowded, "too few would be left for 9 hostile ones"


def test_where_honest_inputs_are_copies_as_many_hostile_ones_are_tolerated(honest):
    """Nothing says whose the copies are, so all of `f` may be others."""
    few = honest[:14].clone()
    few[8:] = few[0]
    for hostile in (sign_flip(few, 6), ipm(few, 6, 5.0), gaussian(few, 6)):
        apart = hostile + torch.randn(6, 1000, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
        spread = float(((few - few.mean(0)) ** 2).sum(1).mean().sqrt() / few.mean(0).norm())
        assert error(soup.ByzantineRobust(), few, apart) < spread


def test_the_mean_fails_where_the_default_holds(honest):
    assert error(soup.UniformSoup(), honest, ipm(honest, 30, 50.0)) >= 15
    assert error(soup.UniformSoup(), honest, sign_flip(honest, 30)) > 3
    assert error(soup.UniformSoup(), honest, gaussian(honest, 30)) > 50


@pytest.mark.parametrize(
    ("n", "f", "z"), [(10, 3, 0.180), (20, 6, 0.366), (50, 15, 0.484), (100, 30, 0.524), (1000, 300, 0.562)]
)
def test_how_far_goes_unnoticed(n, f, z):
    assert abs(z_max(n, f) - z) < 1e-3


@pytest.mark.parametrize("merger", [soup.TrimmedMean(), soup.Median()], ids=lambda each: type(each).__name__)
def test_the_result_stays_in_the_box_of_the_honest_inputs(merger):
    draw = torch.Generator().manual_seed(1)
    for f in range(1, 6):
        honest = torch.randn(2 * f + 1 - f, 50, generator=draw)
        hostile = 1e6 * torch.randn(f, 50, generator=draw)
        found = merge_vectors(merger, torch.cat([honest, hostile]), f).vector
        assert (found >= honest.amin(0)).all() and (found <= honest.amax(0)).all()


@pytest.mark.parametrize(
    ("merger", "needed"),
    [
        (soup.TrimmedMean(), lambda f: 2 * f + 1),
        (soup.Median(), lambda f: 2 * f + 1),
        (soup.MeaMed(), lambda f: 2 * f + 1),
        (soup.GeometricMedian(), lambda f: 2 * f + 1),
        (soup.ByzantineRobust(), lambda f: 2 * f + 1),
        (soup.Krum(), lambda f: 2 * f + 3),
        (soup.MultiKrum(), lambda f: 2 * f + 3),
        (soup.Bulyan(), lambda f: 4 * f + 3),
        (soup.NNM(rule=soup.Krum()), lambda f: 2 * f + 3),
        (soup.Bucketing(size=2), lambda f: 4 * f + 1),
    ],
    ids=lambda each: type(each).__name__,
)
def test_too_few_inputs_are_refused_with_the_number_needed(merger, needed):
    for f in (1, 2, 5):
        x = torch.randn(needed(f), 3)
        assert merge_vectors(merger, x, f).tolerated_byzantine == f
        with pytest.raises(GymError, match=f"needs at least {needed(f)} inputs to tolerate {f} hostile ones"):
            merge_vectors(merger, x[1:], f)


def test_who_tolerates_nobody_says_so():
    with pytest.raises(GymError, match="uniform_soup tolerates no hostile input"):
        merge_vectors(soup.UniformSoup(), torch.ones(5, 2), 1)
    with pytest.raises(GymError, match="slerp needs exactly 2 inputs, and there are 3"):
        merge_vectors(soup.SLERP(), torch.ones(3, 2))
    with pytest.raises(GymError, match="cannot be -1 hostile"):
        merge_vectors(soup.Median(), torch.ones(3, 2), -1)


def test_few_contributors_get_the_mean_and_are_told_that_nobody_is_tolerated():
    """At a threshold of 0.3, three contributors leave room for no hostile one."""
    x = torch.tensor([[1.0, 2.0], [2.0, 2.0], [3.0, 2.0]])
    for count, tolerated in ((1, 0), (2, 0), (3, 0), (4, 1), (10, 3)):
        many = x.repeat(4, 1)[:count]
        merged = merge_vectors(soup.ByzantineRobust(), many)
        assert merged.tolerated_byzantine == tolerated
        if tolerated == 0:
            torch.testing.assert_close(merged.vector, many.mean(0))


ROBUST = [
    soup.TrimmedMean(), soup.Median(), soup.MeaMed(), soup.Krum(), soup.MultiKrum(), soup.Bulyan(), soup.GeometricMedian(),
    soup.CenteredClipping(), soup.NormBound(), soup.SignMajority(), soup.NNM(), soup.ARC(), soup.ByzantineRobust(),
]  # fmt: skip


def agreed(seed: int) -> tuple[Tensor, int]:
    """Return what all honest inputs hold, with zeros, and how many inputs there are."""
    draw = torch.Generator().manual_seed(seed)
    vector = torch.randn(40, generator=draw, dtype=torch.float64)
    vector[torch.rand(40, generator=draw) < 0.3] = 0
    return vector, int(torch.randint(7, 16, (), generator=draw))


def lies(vector: Tensor, count: int, seed: int) -> list[Tensor]:
    noise = torch.randn(count, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return [1e6 * noise, vector + noise, 1e-3 * noise, -vector.repeat(count, 1), (vector + 0.3).repeat(count, 1)]


AGREED = [*ROBUST, soup.Bucketing(), soup.CenteredClipping(start="base"), soup.CenteredClipping(tau=1.0),
          soup.NNM(rule=soup.NormBound()), soup.NNM(rule=soup.GeometricMedian())]  # fmt: skip


@pytest.mark.parametrize("merger", AGREED, ids=lambda each: type(each).__name__)
def test_where_honest_inputs_agree_hostile_ones_move_it_where_a_norm_bounds_it_and_nowhere_else(merger):
    moved = 0.0
    for seed in range(10):
        vector, inputs = agreed(seed)
        hostile = merger.tolerates(inputs)
        good = vector.repeat(inputs - hostile, 1)
        wanted = merge_vectors(merger, good, 0).vector
        for lie in lies(vector, hostile, seed):
            found = merge_vectors(merger, torch.cat([good, lie]), hostile).vector
            moved = max(moved, float((found - wanted).norm() / vector.norm()))
    assert (moved < 1e-9) == (merger.bounded_by() == "spread"), moved


def test_votes_of_signs_make_nothing_longer_than_the_longest_honest_change_and_keep_what_most_say():
    for seed in range(20):
        vector, inputs = agreed(seed)
        hostile = soup.SignMajority().tolerates(inputs)
        draw = torch.Generator().manual_seed(seed)
        good = vector + 0.3 * torch.randn(inputs - hostile, 40, generator=draw, dtype=torch.float64)
        certain = good.sign().sum(0).abs() > hostile
        for lie in lies(vector, hostile, seed):
            found = merge_vectors(soup.SignMajority(), torch.cat([good, lie]), hostile).vector
            assert found.norm() <= good.norm(dim=1).max() * (1 + 1e-12)
            assert torch.equal(found.sign()[certain], good.sign().sum(0).sign()[certain])


@pytest.mark.parametrize("merger", ROBUST, ids=lambda each: type(each).__name__)
def test_broken_inputs_change_no_bit(merger):
    draw = torch.Generator().manual_seed(2)
    good = torch.randn(15, 40, generator=draw)
    names = [f"user-{number}" for number in range(19)]
    bad = not_a_number(good, 4)
    values = torch.cat([good[:7], bad, good[7:]])
    merged = merge_vectors(merger, values, 2, ids=names)
    alone = merge_vectors(merger, good, 2, ids=names[:7] + names[11:])
    assert torch.equal(merged.vector, alone.vector)
    assert [*merged.report["excluded"].values()] == ["NaN", "infinity", "infinity", "1e+30"]
    assert set(merged.report["excluded"]) == set(names[7:11]) and merged.tolerated_byzantine == 2


def test_broken_inputs_are_refused_by_name_where_nobody_is_tolerated():
    x = torch.ones(3, 4)
    x[1, 2] = torch.nan
    with pytest.raises(GymError, match="anna holds NaN, and uniform_soup is no robust merger"):
        merge_vectors(soup.UniformSoup(), x, ids=["otto", "anna", "ida"])
    with pytest.raises(GymError, match="all of the 5 inputs"):
        merge_vectors(soup.Median(), torch.full((5, 2), torch.nan))
    with pytest.raises(GymError, match="trusted input anna holds NaN"):
        merge_vectors(soup.FLTrust(), x, ids=["otto", "anna", "ida"], trusted="anna")
    with pytest.raises(GymError, match="two inputs are called otto"):
        merge_vectors(soup.Median(), torch.ones(2, 2), ids=["otto", "otto"])


@pytest.mark.parametrize("merger", [soup.Krum(), soup.NNM(rule=soup.Krum())], ids=lambda each: type(each).__name__)
def test_small_changes_of_large_weights_are_told_apart(merger):
    """Weights of squared norm 80, and changes of 1e-6: in fp32 the same input is chosen as in fp64."""
    draw = torch.Generator().manual_seed(3)
    base = torch.randn(20_000, generator=draw, dtype=torch.float64)
    base *= (80 / (base**2).sum()).sqrt()
    for inputs in (15, 150):  # distances of more inputs are computed in fp32
        x = (base + 1e-6 * torch.randn(inputs, 20_000, generator=draw, dtype=torch.float64)).float()
        found = [merge_vectors(merger, each, 3, has_base=False).report for each in (x, x.double())]
        assert found[0] == found[1]


def test_what_all_have_in_common_hides_no_distance(honest):
    """Also a hostile input that is a million times as large does not."""
    x = (1000 + honest[:60, :200] * 1e-3).float()
    x = torch.cat([x, 1e6 * x[:1]]).repeat(3, 1) + 1e-4 * torch.randn(
        183, 200, generator=torch.Generator().manual_seed(4)
    )
    chosen = [merge_vectors(soup.MultiKrum(), each, 20).report["selected"] for each in (x, x.double())]
    assert chosen[0] == chosen[1]


def test_distances_of_scaled_inputs_are_those_of_the_vectors():
    values = torch.randn(9, 50, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    factors = torch.tensor([1, 1, 0.5, 0.1, 0.25, 0.25, 1, 0.9, 0.3], dtype=torch.float64)
    before, after = (Vectors(each).distances()[0] for each in (values, factors[:, None] * values))
    torch.testing.assert_close(before.scaled(factors).points, after.points, rtol=1e-12, atol=1e-12)
    assert torch.equal(before.scaled(torch.ones(9, dtype=torch.float64)).points, before.points)
