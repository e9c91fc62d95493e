"""How much noise is how much privacy: tables, an oracle, and what was spent after a kill."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_core import GymError
from gym_deltasoup import CentralPrivacy, PrivacyLedger, delta_of, epsilon_of, sigma_of
from gym_deltasoup.gaussian_mechanism import composed, mu_of

DELTA = 1e-5


def renyi(mu: float, delta: float) -> float:
    """Return an upper bound of epsilon: the best order of Renyi differential privacy, by search."""
    orders = [1 + 0.01 * 1.05**k for k in range(250)]
    return min(a * mu**2 / 2 + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in orders)


@pytest.mark.parametrize(
    ("sigma", "epsilon", "bound"),
    [(0.5, 9.9973, 10.725), (1, 4.3772, 4.728), (2, 1.9931, 2.166), (4, 0.92634, 1.012), (10, 0.34067, 0.375)],
)
def test_epsilon_of_a_release(sigma, epsilon, bound):
    found = epsilon_of(1 / sigma, DELTA)
    assert abs(found - epsilon) <= 1e-4 * max(1, epsilon)
    assert abs(renyi(1 / sigma, DELTA) - bound) < 1e-2 * bound and found < bound


@pytest.mark.parametrize(
    ("epsilon", "sigma"),
    [(0.1, 30.7496), (0.5, 7.03183), (1, 3.73063), (2, 1.99381), (5, 0.891868), (10, 0.499889)],
)
def test_noise_for_an_epsilon(epsilon, sigma):
    found = sigma_of(epsilon, DELTA)
    assert abs(found - sigma) <= 1e-4 * sigma
    assert sigma_of(epsilon, DELTA, 2.5) == pytest.approx(2.5 * found)
    assert epsilon_of(1 / found, DELTA) <= epsilon * (1 + 1e-12)  # on the safe side


def test_releases_compose():
    assert abs(epsilon_of(composed([0.1] * 10), DELTA) - 1.19937) < 1e-4
    assert abs(epsilon_of(composed([0.1] * 100), DELTA) - epsilon_of(1.0, DELTA)) < 1e-9
    assert composed([]) == 0 and epsilon_of(0.0, DELTA) == 0


@pytest.mark.parametrize(("sigma", "releases"), [(1.0, 1), (4.0, 1), (10.0, 10), (30.0, 100)])
def test_agrees_with_the_privacy_loss_distributions_of_dp_accounting(sigma, releases):
    oracle = PLDAccountant(value_discretization_interval=1e-3)
    oracle.compose(SelfComposedDpEvent(GaussianDpEvent(sigma), releases))
    found = epsilon_of(composed([1 / sigma] * releases), DELTA)
    assert abs(found - oracle.get_epsilon(DELTA)) < 1e-3
    assert abs(math.log(delta_of(composed([1 / sigma] * releases), found) / DELTA)) < 1e-6


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(1e-3, 40), log_delta=st.floats(-200, -1))
def test_epsilon_and_mu_are_inverse_however_small_delta_is(mu, log_delta):
    delta = 10.0**log_delta
    epsilon = epsilon_of(mu, delta)
    if epsilon > 0:
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-6)
    assert epsilon_of(mu * 1.01, delta) >= epsilon


def test_numbers_that_allow_for_nothing_are_refused():
    for wrong in (
        lambda: epsilon_of(1, 0),
        lambda: sigma_of(1, 1.0),
        lambda: sigma_of(math.inf, 1e-5),
        lambda: mu_of(-1, 0.1),
    ):
        with pytest.raises(GymError, match=r"epsilon|delta"):
            wrong()


def test_the_ledger_composes_and_refuses_at_the_cap(tmp_path):
    mu = mu_of(1.0, DELTA)
    ledger = PrivacyLedger(tmp_path / "deep" / "privacy.sqlite", DELTA, cap=2.0)
    assert ledger.spend("round 1", ["anna", "otto"], mu) == {"anna": pytest.approx(1), "otto": pytest.approx(1)}
    assert ledger.spend("round 1", ["anna", "otto"], mu)["anna"] == pytest.approx(1)  # once is once
    second = ledger.spend("round 2", ["anna"], mu)["anna"]
    assert second == pytest.approx(epsilon_of(mu * 2**0.5, DELTA)) and second < 2
    again = PrivacyLedger(tmp_path / "deep" / "privacy.sqlite", DELTA, cap=2.0)
    last = again.spend("round 3", ["anna"], mu)["anna"]
    assert last == pytest.approx(epsilon_of(mu * 3**0.5, DELTA)) and last < 2
    before = again.spent("otto")
    with pytest.raises(GymError, match=r"anna has spent an epsilon of 1\.8\d*, and would have 2\.1\d* after round 4"):
        again.spend("round 4", ["otto", "anna"], mu)
    assert again.spent("otto") == before and again.spent("anna") == last, "somebody was charged for nothing"
    with pytest.raises(GymError, match="anna is charged for round 1 already, with another noise"):
        again.admit("round 1", ["anna"], mu / 2)
    again.admit("round 4", ["otto"], mu)
    assert again.spent("otto") == before and again.spent("nobody") == 0


@pytest.mark.parametrize("epsilon", [0.1, 0.018121419618838824, 1.0, 3.8349645168256865])
def test_a_release_of_just_the_cap_is_within_it(tmp_path, epsilon):
    """The noise of an epsilon has that epsilon but for the last digit, which may be larger."""
    for delta in (1e-5, 1e-8, 0.025002166965852033, 0.00047419488219318617):
        ledger = PrivacyLedger(tmp_path / f"{delta}.sqlite", delta, cap=epsilon)
        ledger.spend("round 1", ["anna"], mu_of(epsilon, delta))
        with pytest.raises(GymError, match="the cap is"):
            ledger.spend("round 2", ["anna"], 1e-3)


def test_threads_do_not_spend_more_than_the_cap_together(tmp_path):
    ledger, refused = PrivacyLedger(tmp_path / "privacy.sqlite", DELTA, cap=1.5), []

    def spend(number: int) -> None:
        try:
            ledger.spend(f"release {number}", ["anna"], mu_of(1.0, DELTA))
        except GymError:
            refused.append(number)

    threads = [threading.Thread(target=spend, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 6 and 1 < ledger.spent("anna") <= 1.5  # two releases have 1.48


SPENDER = """
import sys
from pathlib import Path
from gym_deltasoup.privacy.ledger import PrivacyLedger
ledger = PrivacyLedger(Path(sys.argv[1]))
for number in range(100000):
    ledger.spend(f"release {number}", ["anna", "otto"], 0.01)
    print(number, flush=True)
"""


def test_what_was_spent_survives_kill_9(tmp_path):
    """All that was acknowledged is there; of what was not, both contributors are charged or neither."""
    path, done = tmp_path / "privacy.sqlite", 0
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", SPENDER, str(path)], stdout=subprocess.PIPE, text=True)
        for line in child.stdout:
            if int(line) >= done + 20:
                os.kill(child.pid, signal.SIGKILL)
                break
        left = [int(each) for each in child.stdout.read().split()]
        child.stdout.close()
        child.wait()
        done = max([int(line), *left])
        ledger = PrivacyLedger(path)
        spent = ledger.spent("anna")
        assert spent == ledger.spent("otto")
        charged = (mu_of(spent, DELTA) / 0.01) ** 2
        assert done + 0.99 <= charged <= done + 2.01


def test_a_damaged_ledger_lets_nothing_out(tmp_path):
    (tmp_path / "privacy.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(GymError, match="the privacy ledger cannot be used"):
        CentralPrivacy(tmp_path, clip=1.0, epsilon=1.0, delta=DELTA)
