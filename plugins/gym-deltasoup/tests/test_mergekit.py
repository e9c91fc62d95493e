"""Merges equal mergekit's definition of the methods that both have, each tensor by itself as mergekit does it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

import gym_deltasoup as soup
from gym_deltasoup import merge_vectors

pytestmark = pytest.mark.skipif(find_spec("mergekit") is None, reason="the dependency group `oracles` is not installed")


def changes(count, seed):
    return torch.randn(count, 300, generator=torch.Generator().manual_seed(seed))


def same(merger, x, wanted, has_base=True):
    found = merge_vectors(merger, x, 0, has_base=has_base).vector
    torch.testing.assert_close(found, wanted.to(found.dtype), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_ties_and_breadcrumbs(seed):
    from mergekit.merge_methods.generalized_task_arithmetic import get_mask
    from mergekit.sparsify import magnitude, magnitude_outliers

    x = changes(5, seed)
    kept = torch.stack([magnitude(row, 0.2) for row in x])
    agree = get_mask(kept, "sum") * (kept != 0)
    same(soup.TIES(), x, (kept * agree).sum(0) / agree.sum(0).clamp(min=1))
    kept = torch.stack([magnitude_outliers(row, 0.14, gamma=0.01) for row in x])
    same(soup.Breadcrumbs(), x, 0.4 * kept.sum(0))
    densities = [1.0, 0.995, 0.99, 0.5, 0.0101]
    kept = torch.stack([magnitude_outliers(row, said, gamma=0.01) for row, said in zip(x, densities, strict=True)])
    found = merge_vectors(soup.Breadcrumbs(), x, densities=densities).vector
    torch.testing.assert_close(found, 0.4 * kept.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("t", [0.0, 0.3, 0.5, 1.0])
def test_slerp(t):
    from mergekit.merge_methods.slerp import slerp

    x = changes(2, 7)
    same(soup.SLERP(t=t), x, slerp(torch.tensor(t), x[:1], x[1:])[0], has_base=False)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_nuslerp(share):
    from mergekit.merge_methods.nuslerp import nuslerp

    x = changes(2, 7)
    found = merge_vectors(soup.SLERP(), x, 0, weights=[1 - share, share]).vector
    torch.testing.assert_close(found, nuslerp(share, x[0], x[1]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inputs", [2, 5])
def test_karcher(inputs):
    from mergekit.merge_methods.karcher import karcher_merge_tensors

    x = 1.0 + changes(inputs, 3)
    same(soup.Karcher(), x, karcher_merge_tensors(list(x), [1 / inputs] * inputs), has_base=False)


@pytest.mark.parametrize("seed", range(3))
def test_model_stock(seed):
    from mergekit.merge_methods.base import TensorGroup
    from mergekit.merge_methods.model_stock import model_stock_merge_method

    x = 1.0 + changes(4, seed)  # with something in common, or the angle is that of noise
    group = TensorGroup.from_tensors([torch.zeros(300), *x], base_index=0)
    same(soup.ModelStock(), x, model_stock_merge_method([group])[0])
