"""Rules agree with those of ByzFL on the same vectors."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import pytest
import torch

import gym_deltasoup as soup
from gym_deltasoup import merge_vectors
from gym_deltasoup.robust.krum import scores

CASES = 300


@pytest.fixture(scope="module")
def byzfl():
    """Return its aggregators without the rest of it, that needs a torchvision built like the torch at hand."""
    spec = find_spec("byzfl")
    if spec is None:
        pytest.skip("the dependency group `oracles` is not installed")
    package = ModuleType("byzfl")
    package.__path__ = list(spec.submodule_search_locations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "byzfl", package)
        yield import_module("byzfl.aggregators.aggregators"), import_module("byzfl.aggregators.preaggregators")
        for name in [name for name in sys.modules if name.startswith("byzfl.")]:
            del sys.modules[name]


def cases():
    draw = np.random.default_rng(0)
    for _ in range(CASES):
        n = int(draw.integers(5, 14))
        f = int(draw.integers(1, (n - 3) // 2 + 1))
        yield draw.normal(size=(n, 7)) * draw.lognormal(size=(n, 1)), f


def close(found, wanted):
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-6, atol=1e-6)


def test_coordinates_are_trimmed_and_halved_as_there(byzfl):
    rules, _ = byzfl
    for x, f in cases():
        close(merge_vectors(soup.TrimmedMean(), torch.from_numpy(x), f).vector, rules.TrMean(f)(x))
        close(merge_vectors(soup.Median(), torch.from_numpy(x)).vector, rules.Median()(x))
        close(merge_vectors(soup.MeaMed(), torch.from_numpy(x), f).vector, rules.Meamed(f)(x))


def test_krum_is_theirs_with_their_number_of_neighbours(byzfl):
    """They sum the distances to `n - f - 1` others, and the paper to `n - f - 2`."""
    rules, _ = byzfl
    for x, f in cases():
        squared = torch.cdist(torch.from_numpy(x), torch.from_numpy(x)) ** 2
        ranked = scores(squared, len(x) - f - 1).argsort().tolist()
        close(x[ranked[0]], rules.Krum(f)(x))
        close(x[ranked[: len(x) - f]].mean(0), rules.MultiKrum(f)(x))


def test_mixing_and_clipping_are_theirs(byzfl):
    rules, before = byzfl
    for x, f in cases():
        close(merge_vectors(soup.NNM(), torch.from_numpy(x), f).vector, rules.TrMean(f)(before.NNM(f)(x)))
        clipped = before.ARC(f)(x.copy())  # it changes what it is given
        close(merge_vectors(soup.ARC(), torch.from_numpy(x), f).vector, rules.TrMean(f)(clipped))
