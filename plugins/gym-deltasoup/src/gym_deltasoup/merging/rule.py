"""What a merger builds: a rule, which looks at the inputs as often as it needs to and then says how to combine them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gym_core import GymError
from gym_deltasoup.kinds import Merger, name_of, require
from gym_deltasoup.merging.updates import Changed, Chunk, Updates, combined
from gym_optim.promises import promised


@dataclass(frozen=True)
class Plan:
    """How to combine inputs: a function of some coordinates of all of them. It is called for all coordinates once, in order."""

    combine: Callable[[Chunk], Tensor]  #: returns `[coordinates]`
    whole_rows: bool = False  #: whether no row of a tensor may come in pieces
    told: Mapping[str, Any] = field(default_factory=dict)  #: what the report says of it, as plain data


class MergeRule(ABC):
    """What `gym_deltasoup.Merger.build` returns."""

    @abstractmethod
    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Look at the inputs, of which `hostile` may hold anything, and return how to combine them.

        All numbers are finite, and there are as many inputs as the merger declares to need. Raises GymError where the
        inputs do not suit it.
        """


def planned(merger: Merger, updates: Updates, hostile: int) -> Plan:
    """Return the plan of a merger for these inputs. Raises GymError where it needs more than there is."""
    require(merger, len(updates.ids), hostile)
    needs(merger, updates)
    rule = promised(merger.build(), MergeRule, merger, "merger")  # type: ignore[type-abstract]
    return promised(rule.plan(updates, hostile), Plan, f"{name_of(merger)}.plan", "merger")


def needs(merger: Merger, updates: Updates) -> None:
    """Raise GymError where a merger needs something that was not given, or was given something that it does not look at."""
    name = name_of(merger)
    if merger.needs_base and not updates.has_base:
        why = f"{name} combines what was changed in a base, and no base is named"
        raise GymError(why, key="base", fix="name the model that the inputs were trained from")
    if merger.needs_evaluation and updates.score is None:
        why = f"{name} asks how good a candidate is, and there is no function to say so"
        raise GymError(why, key="evaluate", fix="name one: `evaluate: package.module:function`")
    if merger.needs_trusted and updates.trusted is None:
        why = f"{name} compares with an input that is known to be honest, and none is named"
        raise GymError(why, key="trusted", fix="name one of the inputs")


def weighted(weights: Tensor, told: Mapping[str, Any] | None = None) -> Plan:
    """Return the plan to take the sum of all inputs with these weights: fp64 `[inputs]`."""
    return Plan(lambda chunk: combined(weights, chunk.values), told=told or {})


def by_scope(updates: Updates, scope: str, weights: list[Tensor]) -> Plan:
    """Return the plan to take sums with weights of their own in each of the `Updates.scopes`."""
    of = {tensor: each for members, each in zip(updates.scopes(scope), weights, strict=True) for tensor in members}
    return by_tensor([of[tensor] for tensor in range(len(updates.spans))])


def by_tensor(weights: Sequence[Tensor], told: Mapping[str, Any] | None = None) -> Plan:
    """Return the plan to take sums with weights of their own in each tensor: fp64 `[inputs]` each."""
    return Plan(lambda chunk: combined(weights[chunk.tensor], chunk.values), told=told or {})


def after_mixing(rule: Merger, updates: Updates, matrix: Tensor, hostile: int, told: Mapping[str, Any]) -> Plan:
    """Return the plan of a rule behind combinations of the inputs: fp64 `[combinations, inputs]`."""
    _not_random(rule)
    plan = planned(rule, updates.mixed(matrix), hostile)
    return Plan(
        lambda chunk: plan.combine(chunk._replace(values=combined(matrix, chunk.values))),
        plan.whole_rows,
        {**told, "rule": {"name": name_of(rule), **plan.told}},
    )


def after_change(
    rule: Merger, updates: Updates, change: Callable[[Chunk], Tensor], hostile: int, whole_rows: bool = False
) -> Plan:
    """Return the plan of a rule behind inputs of which numbers are replaced, chunk by chunk."""
    _not_random(rule)
    plan = planned(rule, Changed(updates, change, whole_rows), hostile)
    return Plan(
        lambda chunk: plan.combine(chunk._replace(values=change(chunk))),
        plan.whole_rows or whole_rows,
        {"rule": {"name": name_of(rule), **plan.told}},
    )


def _not_random(rule: Merger) -> None:
    """Raise GymError for noise that something stands before: what it says of single inputs does not hold for mixtures."""
    if rule.is_random():
        why = f"{name_of(rule)} is measured for inputs as they are, and something else would change them before"
        raise GymError(why, key="merger.rule", fix=f"put the other merger into the rule of {name_of(rule)}")
