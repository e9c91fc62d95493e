"""Weights that train and get no gradient: text never comes to them, such as those of a vision tower, to which images do."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from gym_torch.console import warn
from gym_torch.distributed.exchange import numbered, ways

SHOWN = 3


def tell_unreached(policy: nn.Module) -> None:
    """Name what trains of a policy and has no gradient after all backward passes of the first step, where there is any."""
    trained = {name: weight for name, weight in policy.named_parameters() if weight.requires_grad}
    left = unreached(trained, {name for name, weight in trained.items() if weight.grad is not None})
    if not left:
        return
    reached = _paths(trained.keys() - left)
    tops = list(dict.fromkeys(next(path for path in ways(name) if path not in reached) for name in left))
    more = f" and {len(tops) - SHOWN} more" * (len(tops) > SHOWN)
    numbers, every = (sum(trained[name].numel() for name in names) for names in (left, trained))
    warn(
        f"in the first step no gradient came to {numbers:,} of {every:,} parameters: {', '.join(tops[:SHOWN])}{more}; "
        "what rows never reach stays as it is, and takes memory"
    )


def unreached(trained: Collection[str], reached: Collection[str]) -> list[str]:
    """Return the names of parameters that were not reached, but for those that a step may go around.

    Of modules in a list that are alike, a router chooses some, and layers may be dropped at random: one that was not reached at
    all says nothing, where another that has the same parameters was.
    """
    held: dict[str, set[str]] = {}  # what each module with a number holds
    for name in trained:
        for path in numbered(name):
            held.setdefault(path, set()).add(name.removeprefix(path))
    came = _paths(reached)
    chosen: dict[str, list[set[str]]] = {}  # by list
    for path, names in held.items():
        if path in came:
            chosen.setdefault(path.rpartition(".")[0], []).append(names)

    def passed(path: str) -> bool:
        return path not in came and any(held[path] <= other for other in chosen.get(path.rpartition(".")[0], []))

    return [name for name in trained if name not in reached and not any(map(passed, numbered(name)))]


def _paths(names: Collection[str]) -> set[str]:
    return {path for name in names for path in ways(name)}
