"""What a member is known for: a moving average of how good its contributions were. It may only lower a weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_deltasoup.ledger.ledger import Member

IDLE = 0.99  #: share of a reputation that a round leaves to who was not there
LEAST = 0.1  #: weight of a member without a reputation, where that of one whose reputation is full is 1


def updated(reputation: float, quality: float, memory: float) -> float:
    """Return the average after a contribution of this quality, which counts from 0 to 1."""
    return memory * reputation + (1 - memory) * min(1.0, max(0.0, quality))


def weights(members: Mapping[str, float]) -> dict[str, float]:
    """Return the weights of contributions by the reputations of their members, for mergers that take weights.

    That of the best is 1, so that a sum is not smaller where nobody has a reputation yet.
    """
    found = {name: LEAST + (1 - LEAST) * reputation for name, reputation in members.items()}
    most = max(found.values(), default=1.0)
    return {name: each / most for name, each in found.items()}


def reputations(members: Mapping[str, Member], report: Mapping[str, Any]) -> dict[str, float]:
    """Return the reputation of each member after a round. Refused contributions, and those trimmed away, count 0."""
    memory = report["rules"]["reputation_memory"]
    good = {name: told["quality"] for name, told in report["contributors"].items() if name not in report["trimmed"]}
    found = {}
    for name, member in members.items():
        if name in report["contributors"] or name in report["refused"]:
            found[name] = updated(member.reputation, good.get(name, 0.0), memory)
        else:
            found[name] = IDLE * member.reputation
    return found
