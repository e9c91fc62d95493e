"""The choice of bits under a budget, against all choices there are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from gym_quant import Mixed
from gym_quant.post_training.mixed import cheapest


@pytest.mark.parametrize("seed", range(5))
def test_no_other_choice_within_the_budget_costs_less(seed):
    draw = np.random.default_rng(seed)
    sizes = [[int(numbers) * bits for bits in (2, 3, 4, 8)] for numbers in draw.integers(5, 50, 5)]
    costs = [sorted(draw.random(4), reverse=True) for _ in sizes]
    budget = 3.7 * sum(each[0] / 2 for each in sizes)
    chosen = cheapest(costs, sizes, budget)
    every = [
        (sum(cost[choice] for cost, choice in zip(costs, choices, strict=True)), choices)
        for choices in product(range(4), repeat=5)
        if sum(size[choice] for size, choice in zip(sizes, choices, strict=True)) <= budget
    ]
    assert sum(cost[choice] for cost, choice in zip(costs, chosen, strict=True)) == pytest.approx(min(every)[0])
    assert sum(size[choice] for size, choice in zip(sizes, chosen, strict=True)) <= budget


def test_a_budget_below_the_fewest_bits_is_refused():
    assert cheapest([[1.0, 0.5]], [[10, 20]], 9) is None
    with pytest.raises(ValueError, match="fewest bits"):
        Mixed(bits_per_weight=2.5, choices=(3, 4))
