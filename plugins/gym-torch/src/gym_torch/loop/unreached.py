"""Weights that train and get no gradient: text never comes to them, such as those of a vision tower."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from gym_core import GymError
from gym_torch.console import warn

SHOWN = 3


def tell_unreached(policy: nn.Module, replicated: bool) -> None:
    """Name what trains of a policy and has no gradient after all backward passes of the first step, where there is any.

    Raises GymError where it is replicated over processes, which wait for each gradient before they exchange any.
    """
    trained = {name: weight for name, weight in policy.named_parameters() if weight.requires_grad}
    missing = next((name for name, weight in trained.items() if weight.grad is None), None)
    if missing and replicated:
        raise GymError(
            f"no gradient came to {missing} in the first step, and ddp waits for that of everything that trains",
            key="distributed",
            fix="set `distributed: fsdp`, or `adapter.target_modules` to modules that text reaches",
        )
    left = unreached(trained, {name for name, weight in trained.items() if weight.grad is not None})
    if not left:
        return
    reached = _paths(trained.keys() - left)
    tops = list(dict.fromkeys(next(path for path in _ways(name) if path not in reached) for name in left))
    more = f" and {len(tops) - SHOWN} more" * (len(tops) > SHOWN)
    numbers, every = (sum(trained[name].numel() for name in names) for names in (left, trained))
    warn(
        f"in the first step no gradient came to {numbers:,} of {every:,} parameters: {', '.join(tops[:SHOWN])}{more}; "
        "what text never reaches stays as it is, and takes memory"
    )


def unreached(trained: Collection[str], reached: Collection[str]) -> list[str]:
    """Return the names of parameters that were not reached, but for those that a step may go around.

    Of modules in a list that are alike, a router chooses some, and layers may be dropped at random: one that was not reached at
    all says nothing, where another that has the same parameters was.
    """
    held: dict[str, set[str]] = {}  # what each module with a number holds
    for name in trained:
        for path in _numbered(name):
            held.setdefault(path, set()).add(name.removeprefix(path))
    came = _paths(reached)
    chosen: dict[str, list[set[str]]] = {}  # by list
    for path, names in held.items():
        if path in came:
            chosen.setdefault(path.rpartition(".")[0], []).append(names)

    def passed(path: str) -> bool:
        return path not in came and any(held[path] <= other for other in chosen.get(path.rpartition(".")[0], []))

    return [name for name in trained if name not in reached and not any(map(passed, _numbered(name)))]


def _ways(name: str) -> list[str]:
    """Return the paths of all modules around a parameter, the outermost first, and its own."""
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _numbered(name: str) -> list[str]:
    return [path for path in _ways(name) if path.rpartition(".")[2].isdigit()]


def _paths(names: Collection[str]) -> set[str]:
    return {path for name in names for path in _ways(name)}
