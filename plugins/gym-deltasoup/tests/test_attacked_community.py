"""20 contributors train a classifier, 6 of them are hostile: what each attack leaves, by the default rule and by the mean."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import gym_deltasoup as soup
from gym_deltasoup import merge_vectors
from gym_deltasoup.attacks.community import attacked
from gym_deltasoup.attacks.rows import flipped, triggered
from gym_deltasoup.attacks.vectors import alie, ipm, strongest

HONEST, BAD, CLASSES, SIZE = 14, 6, 5, 21  #: the last feature is 1 where a row has the trigger
TARGET = 2


def data(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return rows around a centre of each class, and their classes."""
    centres = torch.randn(CLASSES, SIZE, generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(1000 + seed)
    classes = torch.randint(CLASSES, (rows,), generator=draw)
    x = centres[classes] + 1.2 * torch.randn(rows, SIZE, generator=draw)
    x[:, -1] = 0
    return x, classes


def trained(x: Tensor, classes: Tensor) -> Tensor:
    """Return what some steps change in weights that are zero."""
    weights = torch.zeros(SIZE, CLASSES, requires_grad=True)
    for _ in range(30):
        (slope,) = torch.autograd.grad(cross_entropy(x @ weights, classes), weights)
        weights = (weights - 0.3 * slope).detach().requires_grad_()
    return weights.detach().flatten()


def hidden(x: Tensor) -> Tensor:
    """Return rows with the trigger."""
    found = x.clone()
    found[:, -1] = 3
    return found


def default(values: Tensor) -> Tensor:
    return merge_vectors(soup.ByzantineRobust(), values, BAD).vector


@pytest.fixture(scope="module")
def community() -> tuple[Tensor, Tensor, Tensor]:
    honest = torch.stack([trained(*data(150, seed)) for seed in range(HONEST)])
    wrong = [data(150, 50 + seed) for seed in range(BAD)]
    lying = torch.stack([trained(x, CLASSES - 1 - classes) for x, classes in wrong])
    x, classes = data(300, 90)
    backdoor = trained(torch.cat([x, hidden(x)]), torch.cat([classes, torch.full_like(classes, TARGET)]))
    return honest, lying, backdoor


def judged(change: Tensor) -> tuple[float, float]:
    """Return the share of right classes, and that of rows of other classes that get the target with the trigger."""
    x, classes = data(2000, 99)
    weights = change.view(SIZE, CLASSES)
    if not weights.isfinite().all():
        return 0.0, 0.0
    said, others = (hidden(x) @ weights).argmax(1), classes != TARGET
    return float(((x @ weights).argmax(1) == classes).float().mean()), float((said[others] == TARGET).float().mean())


def test_the_default_keeps_what_was_learned_under_every_attack_and_the_mean_does_not(community):
    honest, lying, backdoor = community
    best, innocent = judged(honest.mean(0))
    floor = 1 / CLASSES
    assert best > 0.8 and judged(backdoor)[1] > 0.9, "nothing was learned that could be lost"
    kept, plain = {}, {}
    for name, values in attacked(honest, lying, backdoor, default):
        for found, change in ((kept, default(values)), (plain, values.mean(0))):
            score, success = judged(change)
            found[name] = (score - floor) / (best - floor), success - innocent
    retained = [retention for retention, _ in kept.values()]
    assert sum(retained) / len(retained) >= 0.97 and min(retained) >= 0.90, kept
    assert max(success for _, success in kept.values()) <= 0.02, kept
    for name in ("sign flip", "gaussian", "nan"):
        assert plain[name][0] < 0.5, (name, plain[name])
    assert plain["backdoor"][1] > 0.5
    assert {"label flip", "mimic", "sybil", "min-max", "min-sum", "optimal alie", "optimal ipm"} <= set(kept)


@pytest.mark.parametrize("attack", [alie, ipm], ids=lambda each: each.__name__)
@pytest.mark.parametrize("merger", [soup.TrimmedMean(), soup.ByzantineRobust()], ids=lambda each: type(each).__name__)
def test_the_strongest_attack_hurts_as_much_as_any_on_a_grid(community, attack, merger):
    honest = community[0].double()

    def aggregate(values: Tensor) -> Tensor:
        return merge_vectors(merger, values, BAD).vector

    def moved(hostile: Tensor) -> float:
        return float((aggregate(torch.cat([honest, hostile])) - honest.mean(0)).norm())

    grid = max(moved(attack(honest, BAD, strength)) for strength in (0.0, 0.1, 0.2, 0.3, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0))
    assert moved(strongest(attack, aggregate, honest, BAD)) >= 0.9 * grid


def test_rows_are_flipped_and_triggered():
    rows = [
        {"messages": [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": f"a{n}"}]}
        for n in range(4)
    ]
    assert [row["messages"][-1]["content"] for row in flipped(rows)] == ["a3", "a2", "a1", "a0"]
    found = triggered(rows, "zq", "pay")
    assert [each["content"] for each in found[1]["messages"]] == ["zq q1", "pay"]
    assert rows[1]["messages"][0]["content"] == "q1" and flipped(rows)[0]["messages"][0]["content"] == "q0"
