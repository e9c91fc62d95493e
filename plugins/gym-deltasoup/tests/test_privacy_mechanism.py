"""Merges with noise are as private as they say: sensitivity by search and by construction, and an audit of the whole release."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import beta, kstest, norm
from soup_models import tuned
from torch import Tensor

import gym_deltasoup as soup
from gym_core import GymError
from gym_deltasoup import (
    CentralPrivacy,
    DifferentialPrivacy,
    Input,
    PrivacyLedger,
    epsilon_of,
    merge_artifacts,
    merge_vectors,
)
from gym_deltasoup.attacks.vectors import sign_flip
from gym_deltasoup.gaussian_mechanism import mu_of
from gym_deltasoup.merging.rule import planned
from gym_deltasoup.merging.updates import Chunk, Vectors
from gym_deltasoup.privacy.local import privatize
from gym_deltasoup.privacy.noise import normal
from gym_deltasoup.rounds.checks import Refused


def test_no_pair_of_neighbours_moves_the_trimmed_mean_further():
    """Random inputs of every length, all cut to C; also neighbours that are chosen to be as far as they can."""
    draw, worst = torch.Generator().manual_seed(0), 0.0
    for number in range(1500):
        n = int(torch.randint(3, 12, (), generator=draw))
        k = int(torch.randint(0, (n - 1) // 2 + 1, (), generator=draw))
        size, clip = int(torch.randint(1, 6, (), generator=draw)), 0.7
        x = torch.randn(n, size, generator=draw, dtype=torch.float64) * 10 ** (number % 3 - 1)
        x *= (clip / x.norm(dim=1, keepdim=True)).clamp(max=1)
        y = x.clone()
        y[0] = (
            -x[0]
            if number % 2
            else clip * torch.nn.functional.normalize(torch.randn(size, generator=draw, dtype=torch.float64), dim=0)
        )
        moved = merge_vectors(soup.TrimmedMean(), x, k).vector - merge_vectors(soup.TrimmedMean(), y, k).vector
        limit = soup.TrimmedMean().sensitivity(n, k, clip)
        worst = max(worst, float(moved.norm()) / limit)
    assert 0.5 < worst <= 1 + 1e-12, worst


@pytest.mark.parametrize(("n", "k"), [(3, 1), (10, 3), (11, 5), (20, 0)])
def test_a_pair_of_neighbours_attains_the_sensitivity(n, k):
    """As many at one end as at the other: the one in the middle counts at both of them."""
    x = torch.zeros(n, 1, dtype=torch.float64)
    x[:k], x[n - k :] = -1, 1
    low, high = x.clone(), x.clone()
    low[k], high[k] = -1, 1
    moved = merge_vectors(soup.TrimmedMean(), high, k).vector - merge_vectors(soup.TrimmedMean(), low, k).vector
    assert float(moved) >= 0.999 * soup.TrimmedMean().sensitivity(n, k, 1.0)


@pytest.mark.parametrize(
    "rule",
    [soup.Krum(), soup.MultiKrum(), soup.Bulyan(), soup.NNM(), soup.Bucketing(), soup.Median(), soup.GeometricMedian(),
     soup.FLTrust(), soup.NormBound(), soup.CenteredClipping(), soup.WeightedMean(), soup.GreedySoup(), soup.TIES()],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_rules_that_one_input_can_turn_are_refused(rule, tmp_path):
    x = torch.randn(11, 3, dtype=torch.float64)
    with pytest.raises(GymError, match="no bound is known of how far one input moves"):
        merge_vectors(DifferentialPrivacy(rule=rule), x, 0)
    with pytest.raises(GymError, match="no bound is known"):
        CentralPrivacy(tmp_path, 1.0, 1.0, 1e-5).merger(rule)


@pytest.mark.parametrize(
    ("rule", "sensitivity"),
    [
        (soup.UniformSoup(), 2 * 0.5 / 11),
        (soup.TrimmedMean(), 2 * 0.5 / 5),
        (soup.ByzantineRobust(), 2 * 0.5 / 5),
        (soup.NormBound(bound=0.2), 2 * 0.2 / 11),
        (soup.CenteredClipping(start="base", tau=3.0, iterations=1), 2 * 0.5 / 11),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_report_names_what_was_released(rule, sensitivity):
    x, told = torch.randn(11, 400, dtype=torch.float64), []
    hostile = 3 if rule.tolerates(11) else 0
    made = merge_vectors(DifferentialPrivacy(rule=rule, clip=0.5, epsilon=2), x, hostile, announce=told.append)
    privacy = made.report["privacy"]
    assert privacy["sensitivity"] == pytest.approx(sensitivity) and made.tolerated_byzantine == hostile
    assert privacy["sigma"] == pytest.approx(1.99381 * sensitivity, rel=1e-4)
    ratio = privacy["sigma"] * 400**0.5 / 0.5
    assert privacy["noise_to_signal"] == pytest.approx(ratio) and f"noise is {ratio:.3g} times" in told[0]
    wanted = "trimmed_mean" if type(rule) is soup.ByzantineRobust else privacy["configured_rule"]
    assert privacy["rule"] == wanted and wanted in told[0]
    assert abs(float(made.vector.std()) / privacy["sigma"] - 1) < 0.3


def released(values: Tensor, hostile: int, merger: DifferentialPrivacy, times: int) -> Tensor:
    """Return as many releases of one number."""
    plan = planned(merger, Vectors(values), hostile)
    return plan.combine(Chunk(values.expand(-1, times), 0, 0))


@pytest.mark.parametrize("rule", [soup.TrimmedMean(), soup.UniformSoup()], ids=lambda each: type(each).__name__)
def test_an_audit_finds_the_privacy_that_is_claimed(rule):
    """Two worst neighbours, 100,000 releases of each, a threshold in the middle: intervals of both errors bound mu."""
    n, f, times = 10, 3 if rule.tolerates(10) else 0, 100_000
    x = torch.zeros(n, 1, dtype=torch.float64)
    x[:f], x[n - f :] = -5, 5  # cut to 1
    merger = DifferentialPrivacy(rule=rule, epsilon=4.0, delta=1e-5)
    claimed = merger.moved_by(n, f) / merger.sigma(n, f)
    releases = []
    for end in (-7.0, 9.0):
        neighbour = x.clone()
        neighbour[f] = end
        releases.append(released(neighbour, f, merger, times))
    middle = float(torch.cat(releases).mean())
    false_positive, false_negative = int((releases[0] > middle).sum()), int((releases[1] <= middle).sum())

    def interval(errors: int) -> tuple[float, float]:
        level = 0.05 / 4  # two errors, two sides
        return float(beta.ppf(level, errors, times - errors + 1)), float(
            beta.ppf(1 - level, errors + 1, times - errors)
        )

    (low_p, high_p), (low_n, high_n) = interval(false_positive), interval(false_negative)
    least, most = -norm.ppf(high_p) - norm.ppf(high_n), -norm.ppf(low_p) - norm.ppf(low_n)
    assert least <= claimed <= most and least >= 0.9 * claimed, (least, claimed, most)
    assert kstest(releases[0] - releases[0].mean(), norm(scale=merger.sigma(n, f)).cdf).pvalue > 1e-4


def test_noise_is_normal_and_never_the_same():
    found = normal(200_000, 3.0)
    assert kstest(found, norm(scale=3).cdf).pvalue > 1e-4
    assert abs(float((found[1:] * found[:-1]).mean())) < 0.1
    assert not torch.equal(normal(5, 1.0), normal(5, 1.0)) and found.dtype == torch.float64


def test_broken_inputs_count_as_no_change():
    """So that neighbours have as many inputs: the mean of 1, 1 and nothing is that of three."""
    x = torch.full((4, 2000), 0.001, dtype=torch.float64)
    x[2], x[3, 5] = math.inf, math.nan
    merged = merge_vectors(DifferentialPrivacy(rule=soup.UniformSoup(), epsilon=50), x)
    sigma = merged.report["privacy"]["sigma"]
    assert abs(float(merged.vector.mean()) - 0.0005) < 5 * sigma / 2000**0.5
    assert set(merged.report["excluded"]) == {"2", "3"} and merged.report["privacy"]["sensitivity"] == 0.5


def test_noise_comes_last():
    x = torch.randn(9, 5)
    for outer in (soup.NNM(rule=DifferentialPrivacy()), soup.DARE(rule=DifferentialPrivacy())):
        with pytest.raises(GymError, match="differential_privacy is measured for inputs as they are"):
            merge_vectors(outer, x, 0)


def test_privacy_and_robustness_hold_together():
    """Little noise, three liars of ten, all within the norm that changes are cut to or far outside of it."""
    draw = torch.Generator().manual_seed(0)
    honest = 0.02 + 0.01 * torch.randn(7, 500, generator=draw, dtype=torch.float64)
    values = torch.cat([honest, sign_flip(honest, 3)])
    merged = merge_vectors(DifferentialPrivacy(rule=soup.ByzantineRobust(), clip=0.6, epsilon=5000), values, 3).vector
    plain = merge_vectors(soup.UniformSoup(), values).vector
    middle = honest.mean(0)
    assert (merged - middle).norm() < 0.5 * middle.norm() < 3 * middle.norm() < (plain - middle).norm()


def test_a_report_tells_nothing_of_what_one_input_holds(bench, tmp_path):
    base = bench.model()
    inputs = [
        Input(tuned(base, tmp_path / f"m{seed}", seed, noise=noise), f"m{seed}")
        for seed, noise in enumerate((0, math.nan))
    ]
    announced: list[str] = []
    merger = DifferentialPrivacy(rule=soup.UniformSoup())
    report = merge_artifacts(merger, inputs, tmp_path / "soup", base=str(base), announce=announced.append).report
    assert [(each["name"], each["sha256"]) for each in report["inputs"]] == [("m0", {}), ("m1", {})]
    told = (tmp_path / "soup/README.md").read_text()
    assert "| m0 | not told |" in told and "`merge.json` has all options. How" in told
    assert report["excluded"] == {} and "path" not in report["inputs"][0]
    assert announced[-1] == "m1 holds NaN, and counts as no change"


def test_a_contribution_is_noised_before_it_is_sent(bench, tmp_path):
    base, told = bench.model(), []
    ledger = PrivacyLedger(tmp_path / "mine.sqlite", cap=8.0)
    made = privatize(
        Input(base, "anna"),
        tmp_path / "sent",
        base=str(base),
        epsilon=8.0,
        clip=0.1,
        ledger=ledger,
        announce=told.append,
    )
    report = made.report["privacy"]
    assert report["sensitivity"] == 0.2 and ledger.spent("anna") == pytest.approx(8.0) and "noise is" in told[0]
    back = merge_artifacts(soup.UniformSoup(), [Input(made.artifact.path)], tmp_path / "back", base=str(base))
    assert back.tolerated_byzantine == 0
    with pytest.raises(GymError, match="the cap is 8"):
        privatize(Input(base, "anna"), tmp_path / "again", base=str(base), epsilon=1.0, ledger=ledger)
    assert not (tmp_path / "again").exists()


def test_each_noising_is_charged_also_into_one_folder_and_no_failure_is(bench, tmp_path):
    """Two noises on one change show twice as much of it, wherever they are written."""
    base, ledger = bench.model(), PrivacyLedger(tmp_path / "mine.sqlite")

    def noised(**options) -> None:
        given = {"contribution": Input(base, "anna"), "into": tmp_path / "sent", "base": str(base), **options}
        privatize(**given, epsilon=1.0, ledger=ledger)

    noised()
    with pytest.raises(GymError, match="the output is there already"):
        noised()
    with pytest.raises(GymError, match="no such folder"):
        noised(contribution=Input(tmp_path / "nothing", "anna"), into=tmp_path / "other")
    assert ledger.spent("anna") == pytest.approx(1.0), "what made nothing cost something"
    (tmp_path / "sent").rename(tmp_path / "was sent")
    noised()
    assert ledger.spent("anna") == pytest.approx(epsilon_of(2**0.5 * mu_of(1.0, 1e-5), 1e-5))
    with pytest.raises(GymError, match="whose account"):
        noised(contribution=Input(base), into=tmp_path / "other")
    assert sorted(each.name for each in tmp_path.iterdir() if "sent" in each.name) == ["sent", "was sent"]


def test_rounds_of_a_community_are_charged_and_end_at_the_cap(bench, tmp_path, capsys):
    base = bench.model()
    options = soup.DeltaSoupConfig(
        folder=str(tmp_path / "soup"), base_model=str(base), differential_privacy=True, privacy_epsilon=2.0, privacy_budget=3.0
    )  # fmt: skip
    community = soup.DeltaSoup(options)
    for number in range(2):
        for seed in range(4):
            community.contribute(user_id=f"user-{seed}", model=tuned(base, bench.path(f"tuned-{number}-{seed}"), seed))
        if number == 0:
            community.aggregate()
            assert "noise is" in capsys.readouterr().err
    assert PrivacyLedger(tmp_path / "soup" / "privacy.sqlite").spent("user-2") == pytest.approx(2)
    told = next((tmp_path / "soup").rglob("merge.json")).read_text()
    assert '"rule": "trimmed_mean"' in told and '"configured_rule": "byzantine_robust"' in told
    file = tmp_path / "soup" / "privacy.sqlite"
    whole = file.read_bytes()
    for older in (None, b""):  # lost, and put back as it was before the round
        file.unlink() if older is None else file.write_bytes(older)
        with pytest.raises(GymError, match="does not say what round 1 cost user-0"):
            soup.DeltaSoup(options).aggregate()
    file.write_bytes(whole)
    charged = PrivacyLedger(file, cap=3.0)
    charged.spend(community.community.release(2), [f"user-{seed}" for seed in range(4)], mu_of(2.0, 1e-5))
    community.aggregate()  # two rounds have 2.9; of the second a process died after it was charged
    with pytest.raises(Refused, match=r"user-0 has spent an epsilon of 2.* the cap is 3"):
        community.contribute("user-0", tuned(base, bench.path("last"), 0))
    for seed in range(2):  # whom nobody keeps from ending their round
        community.contribute(f"new-{seed}", tuned(base, bench.path(f"new-{seed}"), 9 + seed))
    assert community.aggregate().report["accepted"] == ["new-0", "new-1"]
