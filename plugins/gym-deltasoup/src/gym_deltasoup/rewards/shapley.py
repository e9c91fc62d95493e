"""What each contributor adds to the value of all: the Shapley value, and how it is estimated where there are many.

`phi_i = sum_S |S|! (n - 1 - |S|)! / n! (v(S + i) - v(S))` over all `S` without `i` (Shapley 1953). The estimate takes random
orders, each with its reverse, and stops an order where the value is as good as that of all (Ghorbani and Zou 2019, algorithm 1).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import combinations

EXACT = 12  #: contributors up to which all coalitions are valued

Value = Callable[[frozenset[str]], float]
"""How good what a coalition made is. Asked for each coalition once."""


def exact(players: Sequence[str], value: Value) -> dict[str, float]:
    """Return the Shapley values: `2 ** n` coalitions are valued."""
    count = len(players)
    values = {
        frozenset(members): value(frozenset(members))
        for size in range(count + 1)
        for members in combinations(players, size)
    }
    shares = [math.factorial(size) * math.factorial(count - 1 - size) / math.factorial(count) for size in range(count)]
    return {
        player: math.fsum(
            shares[len(members)] * (values[members | {player}] - worth)
            for members, worth in values.items()
            if player not in members
        )
        for player in players
    }


def truncated_monte_carlo(
    players: Sequence[str], value: Value, permutations: int, seed: int, tolerance: float = 1e-3
) -> dict[str, float]:
    """Return estimates of Shapley values from `permutations` orders. They sum to what all are worth, within the tolerance.

    An order ends where the value is within `tolerance` times what all add of the value of all; the rest of it adds 0.
    """
    whole, nothing = value(frozenset(players)), value(frozenset())
    near = tolerance * abs(whole - nothing)
    known: dict[frozenset[str], float] = {frozenset(players): whole, frozenset(): nothing}
    sums = dict.fromkeys(players, 0.0)
    draw = random.Random(seed)
    order: list[str] = []
    for turn in range(permutations):
        order = order[::-1] if turn % 2 else draw.sample(sorted(players), len(players))
        members, before = frozenset[str](), nothing
        for player in order:
            if abs(whole - before) <= near and before != nothing:
                break
            members |= {player}
            if members not in known:
                known[members] = value(members)
            sums[player] += known[members] - before
            before = known[members]
    return {player: total / permutations for player, total in sums.items()}


def leave_one_out(players: Sequence[str], value: Value) -> dict[str, float]:
    """Return what all lack without each: `v(N) - v(N - i)`."""
    everybody = frozenset(players)
    whole = value(everybody)
    return {player: whole - value(everybody - {player}) for player in players}
