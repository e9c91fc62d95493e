"""A community under every attack, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gym_deltasoup.attacks.vectors import ATTACKS, alie, ipm, not_a_number, replacement, strongest


def attacked(
    honest: Tensor,
    flipped: Tensor,
    backdoor: Tensor,
    aggregate: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of each attack and what all contributors send, the hostile ones last: `[honest + bad, coordinates]`.

    Args:
        honest: changes of those who are, `[honest, coordinates]`.
        flipped: changes of those who trained on wrong answers, `[bad, coordinates]`.
        backdoor: the change that has the backdoor and is good otherwise, `[coordinates]`; it is enlarged.
        aggregate: what the community does, for attacks that are chosen against it; None leaves them out.

    """
    bad = len(flipped)
    for name, attack in ATTACKS.items():
        yield name, torch.cat([honest, attack(honest, bad)])
    yield "nan", torch.cat([honest, not_a_number(honest, bad)])
    yield "label flip", torch.cat([honest, flipped])
    yield "backdoor", torch.cat([honest, replacement(honest, bad, backdoor)])
    if aggregate is not None:
        yield "optimal alie", torch.cat([honest, strongest(alie, aggregate, honest, bad)])
        yield "optimal ipm", torch.cat([honest, strongest(ipm, aggregate, honest, bad)])
