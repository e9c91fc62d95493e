"""Each rule computes what its paper says: fp64 oracles, brute force, SciPy, and the laws of their definitions."""

from __future__ import annotations

import math

import merge_oracles as oracles
import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

import gym_deltasoup as soup
from gym_core import GymError
from gym_deltasoup import merge_vectors
from gym_deltasoup.config.by_layer import values_of
from gym_deltasoup.merging.drawn import uniform
from gym_deltasoup.merging.sketch import WIDTH, cosines, sketches
from gym_deltasoup.merging.updates import Vectors
from gym_deltasoup.robust.bucketing import buckets
from gym_deltasoup.robust.krum import scores

RULES = [
    (soup.UniformSoup(), oracles.mean, 0),
    (soup.WeightedMean(), oracles.mean, 0),
    (soup.TaskArithmetic(), oracles.task_arithmetic, 0),
    (soup.Karcher(max_iter=200, tol=1e-12), oracles.karcher, 0),
    (soup.ModelStock(), oracles.model_stock, 0),
    (soup.TIES(), oracles.ties, 0),
    (soup.TIES(density=0.55), lambda x, f: oracles.ties(x, density=0.55), 0),
    (soup.SCE(), oracles.sce, 0),
    (soup.SCE(density=0.3), lambda x, f: oracles.sce(x, density=0.3), 0),
    (soup.Breadcrumbs(), oracles.breadcrumbs, 0),
    (soup.Breadcrumbs(top=0.1, bottom=0.3), lambda x, f: oracles.breadcrumbs(x, top=0.1, bottom=0.3), 0),
    (soup.Krum(), oracles.krum, 3),
    (soup.MultiKrum(), oracles.multi_krum, 3),
    (soup.Bulyan(), oracles.bulyan, 2),
    (soup.TrimmedMean(), oracles.trimmed_mean, 4),
    (soup.Median(), oracles.median, 5),
    (soup.MeaMed(), oracles.meamed, 5),
    (soup.CenteredClipping(start="base", tau=2.0), lambda x, f: oracles.centered_clipping(x, tau=2.0), 3),
    (soup.NormBound(bound=3.0), lambda x, f: oracles.norm_bound(x, bound=3.0), 3),
    (soup.SignMajority(), oracles.sign_majority, 5),
    (soup.NNM(), lambda x, f: oracles.trimmed_mean(oracles.nnm(x, f), f), 4),
    (soup.NNM(rule=soup.Krum()), lambda x, f: oracles.krum(oracles.nnm(x, f), f), 3),
    (soup.ARC(), lambda x, f: oracles.trimmed_mean(oracles.arc(x, f), f), 4),
    (soup.ByzantineRobust(), oracles.byzantine_robust, 3),
    (soup.ByzantineRobust(), oracles.byzantine_robust, 0),
]


def draws(count, inputs=13, size=31, seed=0):
    """Yield inputs around a common vector, of very different sizes."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        yield draw.normal(size=size) + draw.normal(size=(inputs, size)) * draw.lognormal(size=(inputs, 1))


@pytest.mark.parametrize(("merger", "oracle", "hostile"), RULES, ids=lambda each: type(each).__name__)
def test_agrees_with_its_oracle(merger, oracle, hostile):
    for x in draws(20):
        found = merge_vectors(merger, torch.from_numpy(x), hostile).vector
        np.testing.assert_allclose(found, oracle(x, hostile), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("merger", "oracle"),
    [
        (soup.TrimmedMean(), oracles.trimmed_mean),
        (soup.Median(), oracles.median),
        (soup.MeaMed(), oracles.meamed),
        (soup.Krum(), oracles.krum),
    ],
    ids=lambda each: type(each).__name__,
)
def test_agrees_with_brute_force_for_all_sizes(merger, oracle):
    draw = np.random.default_rng(1)
    for _ in range(300):
        inputs = int(draw.integers(3, 12))
        hostile = int(draw.integers(0, merger.tolerates(inputs) + 1))
        x = draw.normal(size=(inputs, 5))
        found = merge_vectors(merger, torch.from_numpy(x), hostile).vector
        np.testing.assert_allclose(found, oracle(x, hostile), rtol=1e-6, atol=1e-6)


def test_slerp_and_fltrust_agree_with_their_oracles():
    for x in draws(20, inputs=2):
        for t in (0.0, 0.3, 1.0):
            found = merge_vectors(soup.SLERP(t=t), torch.from_numpy(x)).vector
            np.testing.assert_allclose(found, oracles.slerp(x, t=t), rtol=1e-6, atol=1e-6)
    for x in draws(20):
        found = merge_vectors(soup.FLTrust(), torch.from_numpy(x), 3, trusted="0").vector
        np.testing.assert_allclose(found, oracles.fltrust(x), rtol=1e-6, atol=1e-6)


def test_weights_say_how_far_to_go_between_directions():
    for x in draws(20, inputs=2):
        norms, values = np.linalg.norm(x, axis=1), torch.from_numpy(x)
        found = merge_vectors(soup.SLERP(), values, weights=[3, 1]).vector
        np.testing.assert_allclose(found, oracles.slerp(x, t=0.25), rtol=1e-6, atol=1e-6)
        found = merge_vectors(soup.Karcher(max_iter=200, tol=1e-12), values, weights=[3, 1]).vector
        wanted = oracles.slerp(x / norms[:, None], t=0.25) * (norms @ [0.75, 0.25])
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    for x in draws(5):
        weights = [*np.arange(1.0, 14)]
        found = merge_vectors(soup.Karcher(max_iter=200, tol=1e-12), torch.from_numpy(x), weights=weights).vector
        np.testing.assert_allclose(found, oracles.karcher(x, weights=weights), rtol=1e-6, atol=1e-6)
    with pytest.raises(GymError, match="slerp takes no weights"):
        merge_vectors(soup.SLERP(t=0.5), torch.eye(2), weights=[1, 2])


def test_directions_that_cancel_out_or_are_none_leave_numbers():
    one = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    for x, wanted in ((torch.cat([one, -one]), [0, 0]), (torch.cat([one, 0 * one]), [0.5, 1]), (0 * one, [0, 0])):
        np.testing.assert_allclose(merge_vectors(soup.Karcher(), x).vector, wanted, atol=1e-12)


def test_trimmed_mean_is_that_of_scipy():
    for x in draws(20, inputs=20):
        for hostile in (0, 3, 9):
            found = merge_vectors(soup.TrimmedMean(), torch.from_numpy(x), hostile).vector
            np.testing.assert_allclose(found, trim_mean(x, hostile / 20 + 1e-9, axis=0), rtol=1e-12, atol=1e-12)


def test_krum_scores_with_any_number_of_neighbours():
    for x in draws(10):
        for neighbours in (5, 8, 9):
            found = scores(torch.from_numpy(oracles.squared(x)), neighbours)
            np.testing.assert_allclose(found, oracles.krum_scores(x, neighbours), rtol=1e-9)


def test_the_geometric_median_has_no_gradient():
    for x in draws(20):
        z = merge_vectors(soup.GeometricMedian(), torch.from_numpy(x), 0).vector.numpy()
        gradient = sum((z - row) / np.linalg.norm(z - row) for row in x)
        assert np.linalg.norm(gradient) < 1e-6


def test_the_geometric_median_of_few_points():
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)
    fermat = merge_vectors(soup.GeometricMedian(), corners, 0).vector
    np.testing.assert_allclose(fermat, [0.5, 0.75**0.5 / 3], atol=1e-6)
    line = torch.tensor([[0.0], [1.0], [5.0], [6.0], [100.0]], dtype=torch.float64)
    np.testing.assert_allclose(merge_vectors(soup.GeometricMedian(), line, 0).vector, [5.0], atol=1e-4)
    for x in draws(50, inputs=9, size=1):  # of one coordinate it is the median
        found = merge_vectors(soup.GeometricMedian(), torch.from_numpy(x), 0).vector.numpy()
        assert abs(found - np.median(x)) < 1e-4 * (x.max() - x.min())


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_score_that_is_no_number_keeps_nothing_wherever_it_stands(broken):
    values = torch.eye(3)
    told = dict(zip({0, 1, 2} - {broken}, (0.9, 0.95), strict=True))

    def score(vector):
        return told.get(int(vector.argmax()), math.nan) if float(vector.max()) == 1 else 0.0

    found = merge_vectors(soup.GreedySoup(), values, evaluate=score)
    assert found.report["kept"] == [str(max(told, key=told.__getitem__))] and found.report["score"] == 0.95
    assert found.report["scores"][str(broken)] is None
    with pytest.raises(GymError, match="no input has a score that is a number"):
        merge_vectors(soup.GreedySoup(), values, evaluate=lambda vector: math.nan)


def test_greedy_soup_keeps_what_does_not_make_it_worse():
    """By hand: 4 and 6 around 5; 9 alone is better than 0, and each makes the mean of both worse."""
    x = torch.tensor([[9.0], [4.0], [0.0], [6.0]], dtype=torch.float64)
    merged = merge_vectors(soup.GreedySoup(), x, ids=list("abcd"), evaluate=lambda v: -abs(float(v) - 5))
    assert merged.vector.tolist() == [5.0] and merged.report["kept"] == ["b", "d"]
    assert merged.report["scores"] == {"a": -4, "b": -1, "c": -5, "d": -1} and merged.report["score"] == 0


def test_what_is_left_out_is_left_out_of_the_scored_soups_too():
    x = torch.tensor([[4.0], [torch.nan], [6.0]])
    with pytest.raises(GymError, match="1 holds NaN"):
        merge_vectors(soup.GreedySoup(), x, evaluate=lambda v: 0.0)


def test_weighted_mean_and_task_arithmetic_take_weights():
    x = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    assert merge_vectors(soup.WeightedMean(), x, weights=[1, 3]).vector.tolist() == [2.5]
    assert merge_vectors(soup.TaskArithmetic(scale=0.5), x, weights=[1, -1]).vector.tolist() == [-1.0]
    assert merge_vectors(soup.WeightedMean(normalize=False), x, weights=[1, -1]).vector.tolist() == [-2.0]
    for weights in ([-1, 2], [0, 0], [1, torch.nan]):
        with pytest.raises(GymError, match="weight"):
            merge_vectors(soup.WeightedMean(), x, weights=weights)
    with pytest.raises(GymError, match="median takes no weights"):
        merge_vectors(soup.Median(), x, weights=[1, 1])


def test_dare_keeps_the_mean_and_drops_its_share():
    x = torch.ones(2, 50_000, dtype=torch.float64)
    merged = merge_vectors(soup.DARE(drop_rate=0.8, rule=soup.UniformSoup()), x).vector
    assert abs(float(merged.mean()) - 1) < 0.03
    values, counts = merged.unique(return_counts=True)
    np.testing.assert_allclose(values, [0, 2.5, 5])
    np.testing.assert_allclose(counts / 50_000, [0.64, 0.32, 0.04], atol=0.01)


def test_della_drops_small_numbers_of_a_row_more_often():
    x = torch.linspace(1, 2, 100, dtype=torch.float64).repeat(1, 400)
    spans = [("w", 0, 40_000, 100)]
    from gym_deltasoup.merging.rule import planned
    from gym_deltasoup.merging.updates import Span

    updates = Vectors(x, spans=[Span(*spans[0])])
    plan = planned(soup.DELLA(drop_rate=0.5, epsilon=0.6, rule=soup.UniformSoup()), updates, 0)
    found = torch.cat([plan.combine(chunk) for chunk in updates.chunks(plan.whole_rows)]).view(400, 100)
    kept = (found != 0).double().mean(0)
    np.testing.assert_allclose(kept, torch.linspace(0.2, 0.8, 100), atol=0.1)
    np.testing.assert_allclose(found.mean(0), x[0, :100], rtol=0.35)
    assert abs(float((found.mean(0) / x[0, :100]).mean()) - 1) < 0.05


WEIGHTS, DENSITIES = [0.5, 1.0, 0.25, 2.0, 1.0], [0.5, 0.2, 0.9, 0.35, 0.6]
SUM = soup.TIES(density=1.0, normalize=False)  # behind what drops numbers, as `dare_ties` of mergekit has it


def thinned(epsilon, behind, rescale=True):
    def oracle(x):
        draws = np.stack([uniform(3, str(row), 0, x.shape[1]) for row in range(len(x))])
        kept = oracles.thinned(x, draws, DENSITIES, epsilon)
        return behind(kept if rescale else np.where(kept != 0, x, 0))

    return oracle


def weighed(x):
    return oracles.task_arithmetic([w * row for w, row in zip(WEIGHTS, x, strict=True)])


@pytest.mark.parametrize(
    ("merger", "oracle"),
    [
        (soup.TIES(), lambda x: oracles.ties(x, weights=WEIGHTS, densities=DENSITIES)),
        (
            soup.TIES(normalize=False, scale=0.5),
            lambda x: 0.5 * oracles.ties(x, weights=WEIGHTS, normalize=False, densities=DENSITIES),
        ),
        (soup.Breadcrumbs(), lambda x: oracles.breadcrumbs(x, weights=WEIGHTS, densities=DENSITIES)),
        (soup.DARE(seed=3), thinned(0.0, weighed)),
        (soup.DARE(seed=3, rule=SUM), thinned(0.0, lambda x: oracles.elected(x, WEIGHTS, False))),
        (soup.DELLA(seed=3, epsilon=0.15), thinned(0.15, lambda x: oracles.elected(x, WEIGHTS, True))),
        (soup.DARE(seed=3, rescale=False), thinned(0.0, weighed, rescale=False)),
        (
            soup.DELLA(seed=3, epsilon=0.15, rescale=False),
            thinned(0.15, lambda x: oracles.elected(x, WEIGHTS, True), rescale=False),
        ),
    ],
    ids=["ties", "ties summed", "breadcrumbs", "dare", "dare ties", "della", "dare as it is", "della as it is"],
)
def test_each_input_has_a_weight_and_a_density_of_its_own(merger, oracle):
    for x in draws(20, inputs=5):
        given = {"weights": WEIGHTS, "densities": DENSITIES}
        found = merge_vectors(merger, torch.from_numpy(x), **given).vector
        np.testing.assert_allclose(found, oracle(x), rtol=1e-6, atol=1e-6)
        halved = merge_vectors(merger, torch.from_numpy(x), **{**given, "densities": [0.5, *[None] * 4]}).vector
        alike = merge_vectors(merger, torch.from_numpy(x), weights=WEIGHTS).vector
        assert not torch.equal(halved, alike), "one density alone counts"


@pytest.mark.parametrize(
    ("merger", "given", "match"),
    [
        (soup.TIES(), {"weights": [1, -1]}, "not negative"),
        (soup.DARE(rule=soup.Median()), {"weights": [1, 1]}, "dare takes no weights"),
        (soup.TaskArithmetic(), {"densities": [0.5, None]}, "task_arithmetic keeps all numbers of a change"),
        (soup.TIES(), {"densities": [0.5, 0.0]}, "a density is 0.0"),
        (soup.DELLA(), {"densities": [0.5, 0.95]}, "1 keeps 0.95 of its numbers, and 0.1 more"),
    ],
)
def test_weights_and_densities_that_do_not_suit_are_refused(merger, given, match):
    with pytest.raises(GymError, match=match):
        merge_vectors(merger, torch.ones(2, 40), **given)
    assert merge_vectors(soup.DELLA(drop_rate=0.1), torch.ones(2, 4), densities=[0.9, None]).vector.isfinite().all()


def test_a_density_that_leaves_little_to_drop_drops_fewer_of_the_largest():
    x = torch.randn(3, 300, generator=torch.Generator().manual_seed(0))
    densities = [1.0, 0.995, 0.14]
    found = merge_vectors(soup.Breadcrumbs(), x, densities=densities).vector
    np.testing.assert_allclose(found, oracles.breadcrumbs(x.numpy(), densities=densities), rtol=1e-6, atol=1e-6)


def test_how_deep_a_weight_lies_is_seen_from_its_name():
    told = {
        "transformer.wte.weight": 0, "transformer.h.0.ln_1.weight": 0, "transformer.h.1.ln_1.weight": 0.5,
        "transformer.h.2.ln_1.weight": 1, "transformer.ln_f.weight": 1, "embed_out.weight": 1, "vision.blocks.4.mlp.0": 1,
        "vision.blocks.3.mlp.9": 0.75,
    }  # fmt: skip
    assert values_of([0, 1], [*told], "t") == [*told.values()]
    assert values_of({"ln_1": [1, 0, 1], "*": 4}, ["h.0.ln_1", "h.4.ln_1", "h.1.ln_1", "wte"], "t") == [1, 1, 0.5, 4]
    with pytest.raises(GymError, match="vector have no number"):
        merge_vectors(soup.SLERP(t=(0, 1)), torch.ones(2, 3))


def test_draws_belong_to_a_place():
    whole = uniform(3, "a", 0, 1000)
    for begin, end in ((0, 1), (3, 9), (997, 1000), (500, 504)):
        assert torch.equal(uniform(3, "a", begin, end), whole[begin:end])
    assert not torch.equal(uniform(3, "b", 0, 1000), whole) and not torch.equal(uniform(4, "a", 0, 1000), whole)
    assert 0.45 < float(whole.mean()) < 0.55


def test_sketches_keep_distances_whatever_the_chunks_are():
    """2,000 pairs at any distance: the mean is right, and nearly all are within four standard deviations of the bound."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1, 20_000, generator=draw, dtype=torch.float64)
    others = x + torch.logspace(-3, 0, 64)[:, None] * torch.randn(64, 20_000, generator=draw, dtype=torch.float64)
    others[:8, 0] += 100  # all of the difference in one coordinate
    values = torch.cat([x, others])
    found = sketches(Vectors(values), seed=3)
    assert torch.equal(found[5:9], sketches(Vectors(values, most=1), 3, [5, 6, 7, 8])), "chunks change nothing"
    ratio = (
        torch.cdist(found, found)[*torch.triu_indices(65, 65, 1)]
        / torch.cdist(values, values)[*torch.triu_indices(65, 65, 1)]
    )
    assert abs(float((ratio**2).mean()) - 1) < 0.02 and float((ratio**2 - 1).abs().max()) < 4 * (2 / WIDTH) ** 0.5
    exact = torch.nn.functional.cosine_similarity(x, others)
    near = cosines(found[:1], found[1:])[0]
    assert float(((near - exact) / (1 - exact)).abs().max()) < 0.1
    assert cosines(torch.zeros(1, WIDTH, dtype=torch.float64), found[:1]).tolist() == [[0.0]]
    assert not torch.equal(sketches(Vectors(values), seed=4), found)


def test_buckets_are_means_that_names_decide():
    matrix = buckets(tuple("abcdefg"), 3, seed=1)
    assert matrix.shape == (3, 7) and torch.allclose(matrix.sum(1), torch.ones(3, dtype=torch.float64))
    assert sorted((matrix > 0).sum(1).tolist()) == [1, 3, 3] and (matrix > 0).sum(0).tolist() == [1] * 7
    turned = buckets(tuple("gfedcba"), 3, seed=1)
    assert torch.equal(turned, matrix.flip(1)) and not torch.equal(buckets(tuple("abcdefg"), 3, seed=2), matrix)


def test_sign_majority_of_even_votes_is_zero():
    x = torch.tensor([[1.0, -1.0], [-1.0, -1.0], [3.0, -3.0], [-3.0, 3.0]], dtype=torch.float64)
    assert merge_vectors(soup.SignMajority(), x, 1).vector.tolist() == [0.0, -2.0]
