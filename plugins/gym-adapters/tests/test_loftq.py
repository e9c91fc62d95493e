"""LoftQ: NormalFloat as published, better than rounding alone, never worse for more turns, and right for any scaling."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from gym_adapters import LoftQ, nf4
from gym_adapters.tuners.loftq import loftq
from gym_core import GymError

#: NF4 as published with QLoRA (arXiv:2305.14314, appendix E).
PUBLISHED = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    return torch.randn(48, 80, generator=torch.Generator().manual_seed(0))


@pytest.mark.proves("loftq")
def test_the_levels_are_those_published() -> None:
    np.testing.assert_allclose(nf4.levels().numpy(), PUBLISHED, atol=1e-6)
    assert [len(nf4.levels(bits)) for bits in (2, 3, 4)] == [4, 8, 16]


@pytest.mark.parametrize(("bits", "block"), [(4, 64), (3, 64), (2, 32), (4, 7)])
def test_rounding_takes_the_nearest_level_of_each_block(weight: torch.Tensor, bits: int, block: int) -> None:
    table, flat = nf4.levels(bits).numpy(), weight.flatten().numpy()
    expected = np.concatenate(
        [
            max(abs(part)) * table[abs(part[:, None] / max(abs(part)) - table).argmin(1)]
            for part in np.split(flat, range(block, len(flat), block))
        ]
    )
    found = nf4.rounded(weight, bits, block)
    np.testing.assert_allclose(found.flatten().numpy(), expected, rtol=1e-6)
    torch.testing.assert_close(nf4.rounded(found, bits, block), found)
    assert not nf4.rounded(torch.zeros(3, 5)).any()


@pytest.mark.proves("loftq")
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_it_is_better_than_rounding_and_never_worse_for_more_turns(weight: torch.Tensor, bits: int) -> None:
    plain = float((weight - nf4.rounded(weight, bits)).norm())
    errors = [loftq(weight, LoftQ(bits=bits, iterations=turns), 2.0).error for turns in (1, 2, 3, 5, 10)]
    assert errors[0] < plain
    assert all(later <= earlier for earlier, later in pairwise(errors))
    assert errors[-1] < errors[0]


@pytest.mark.proves("loftq")
def test_it_is_as_good_for_any_scaling(weight: torch.Tensor) -> None:
    """The update counts times its scaling: an alpha that is not the rank changes nothing."""
    one, other = (loftq(weight, LoftQ(rank=8), scaling) for scaling in (1.0, 3.7))
    assert one.error == pytest.approx(other.error, rel=1e-3)
    wrong = float((weight - other.base - other.update.times(1.0)).norm())
    assert wrong > 1.05 * other.error


@pytest.mark.proves("loftq")
def test_begun_it_is_closer_to_the_base_than_rounding_is(bench: Any) -> None:
    plain = bench.base()
    expected = bench.logits(bench.base())
    adapted = bench.begun(LoftQ(rank=6, bits=2))
    for name, layer in adapted.layers().items():
        module = plain.get_submodule(name)
        module.weight.data = nf4.rounded(module.weight.data, 2)
        assert torch.equal(layer.get_base_layer().weight, nf4.rounded(layer.get_base_layer().weight, 2))
    assert (bench.logits(adapted.model) - expected).norm() < 0.8 * (bench.logits(plain) - expected).norm()


def test_one_that_was_begun_otherwise_is_not_loaded_over(bench: Any) -> None:
    one = bench.begun(LoftQ(rank=3, bits=2))
    other = LoftQ(rank=3, bits=2, iterations=1).build(model=bench.base(), seed=0)
    other.initialize()
    with pytest.raises(GymError, match="is rounded otherwise already"):
        other.load({name: tensor.clone() for name, tensor in one.state().items()})
