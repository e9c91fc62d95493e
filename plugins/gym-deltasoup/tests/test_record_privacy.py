"""Training on private records: what it costs is no less than by another library, each row moves little, and the cap holds."""

from __future__ import annotations

import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from gym_core import GymError
from gym_deltasoup import PrivacyLedger, RecordPrivacy, delta_of, epsilon_of, train_on_records
from gym_deltasoup.privacy.subsampled import mu_of_training

SLACK = 1e-8


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.05, 50), (2.0, 0.2, 20), (1.0, 1.0, 4)])
def test_mu_is_worse_than_training_at_every_epsilon_and_not_by_much(noise, rate, steps):
    """Loss of privacy as dp-accounting composes it: for neighbours that differ in a row that is there or not."""
    oracle = PLDAccountant(value_discretization_interval=1e-3)
    oracle.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
    mu = mu_of_training(noise, rate, steps, SLACK)
    epsilons = [0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0]
    for epsilon in epsilons:
        assert oracle.get_delta(epsilon) <= (SLACK + (1 - SLACK) * delta_of(mu, epsilon)) * (1 + 1e-6), epsilon
    assert mu <= steps**0.5 / noise and epsilon_of(mu, 1e-5) < 1.5 * oracle.get_epsilon(1e-5)


def trained(ledger, release, rows, noise=1.0, clip=0.5, steps=3):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    before = model.weight.detach().clone()

    def loss(net, batch):
        return ((net(batch[0]) - batch[1]) ** 2).mean()

    data = torch.utils.data.TensorDataset(rows, rows.sum(1, keepdim=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    how = RecordPrivacy(batch=len(rows), steps=steps, noise=noise, clip=clip)
    spent = train_on_records(model, data, loss, optimizer, how, ledger=ledger, member="anna", release=release)
    return spent, model, before


def test_training_is_charged_to_the_ledger_of_everything_else_and_ends_at_the_cap(tmp_path):
    rows = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    ledger = PrivacyLedger(tmp_path / "mine.sqlite", cap=16.0)
    spent, model, before = trained(ledger, "first", rows)
    assert not torch.equal(model.weight, before) and type(model) is torch.nn.Linear
    assert 0 < spent == ledger.spent("anna") < 16
    more = ledger.spend("a round", ["anna"], 1.0)["anna"]
    assert spent < more < 16
    with pytest.raises(GymError, match="the cap is 16"):
        trained(ledger, "second", rows, noise=0.5)
    assert ledger.spent("anna") == more


def test_each_training_is_charged_also_under_one_name(tmp_path):
    """The noise of two trainings differs, so both of them together tell more."""
    ledger = PrivacyLedger(tmp_path / "mine.sqlite", cap=16.0)
    rows = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    once = trained(ledger, "week 1", rows, noise=2.0)[0]
    assert trained(ledger, "week 1", rows, noise=2.0)[0] > 1.3 * once


def test_one_row_moves_the_weights_by_no_more_than_its_cut_gradient(tmp_path):
    """With next to no noise: a row of any size is cut."""
    ledger = PrivacyLedger(tmp_path / "mine.sqlite")
    rows = torch.full((8, 4), 0.5)
    wild = torch.cat([rows[:7], torch.full((1, 4), 1e4)])
    moved = [trained(ledger, name, data, noise=1e-3, steps=1)[1].weight for name, data in (("a", rows), ("b", wild))]
    assert (moved[0] - moved[1]).norm() <= 0.1 * 2 * 0.5 / 8 * 1.01


def counted(tmp_path, batch, steps, rows):
    """Train on dicts with much noise, and return what was charged, the sizes of all batches and the model."""
    torch.manual_seed(0)
    model, sizes = torch.nn.Linear(2, 1), []

    def loss(net, batch):
        sizes.append(len(batch))
        return net(batch).square().mean()

    ledger = PrivacyLedger(tmp_path / "mine.sqlite")
    how = RecordPrivacy(batch=batch, steps=steps, noise=20.0)
    data = [{"x": row} for row in rows]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    collate = lambda found: torch.stack([each["x"] for each in found])  # noqa: E731
    spent = train_on_records(
        model, data, loss, optimizer, how, ledger=ledger, member="anna", release="one", collate=collate
    )
    return spent, sizes, model


def test_a_row_is_in_a_batch_with_the_probability_that_is_charged(tmp_path):
    """Also where rows are no multiple of a batch."""
    steps = 400
    spent, sizes, _ = counted(tmp_path, 7, steps, torch.randn(10, 2))
    assert abs(sum(sizes) / steps - 7) < 5 * (10 * 0.7 * 0.3 / steps) ** 0.5
    assert spent == pytest.approx(epsilon_of(mu_of_training(20.0, 0.7, steps, SLACK), 1e-5), rel=2e-3)


def test_a_batch_without_rows_is_a_step_of_noise_alone(tmp_path):
    _, sizes, model = counted(tmp_path, 1, 60, torch.randn(3, 2))
    assert 25 < len(sizes) < 55 and min(sizes) == 1
    assert torch.isfinite(model.weight).all()


def test_a_row_without_a_finite_gradient_moves_nothing_else(tmp_path):
    """Else everybody sees in the weights that it is there."""
    for name, wild in (("nan", torch.nan), ("inf", torch.inf)):
        rows = torch.cat([torch.randn(4, 2), torch.full((1, 2), wild)])
        assert torch.isfinite(counted(tmp_path / name, 5, 3, rows)[2].weight).all()


@pytest.mark.parametrize("key", ["clip", "noise"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_cut_and_noise_that_hide_nothing_are_refused_before_anything_is_charged(key, value):
    with pytest.raises(GymError, match=key):
        RecordPrivacy(**{"batch": 4, "steps": 3, "noise": 1.0, key: value})


def test_a_model_whose_rows_see_each_other_costs_nothing(tmp_path):
    ledger = PrivacyLedger(tmp_path / "mine.sqlite")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    rows = torch.utils.data.TensorDataset(torch.randn(8, 4))
    how = RecordPrivacy(batch=4, steps=1, noise=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(GymError, match="BatchNorm"):
        train_on_records(model, rows, lambda net, batch: net(batch[0]).mean(), optimizer, how,
                         ledger=ledger, member="anna", release="one")  # fmt: skip
    assert ledger.spent("anna") == 0
