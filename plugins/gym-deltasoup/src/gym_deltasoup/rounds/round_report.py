"""The report of a round as plain data: who was accepted, trimmed or refused and why, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from gym_deltasoup.ledger.ledger import Contribution
from gym_deltasoup.rounds.community import Community
from gym_deltasoup.rounds.contribution_gate import Gated
from gym_deltasoup.rounds.model_scores import Scores
from gym_deltasoup.rounds.update_statistics import BesideResult

KEPT = "What was seen of single contributions is not noised, and is kept by who runs the community."
OPEN = "Enrolment is open: one person may hold many names, and nothing but the robust rule and the gate stands against that."


@dataclass(frozen=True)
class Merged:
    """What is known of a round when it was merged."""

    merge: Mapping[str, Any]  #: the report of the merge
    members: Sequence[str]  #: whose contributions were merged
    beside: BesideResult
    trimmed: Mapping[str, float]  #: whose numbers were trimmed away: in what share of the coordinates
    quality: Mapping[str, float]
    after: Scores  #: of the result
    points: Mapping[str, int]
    privacy: Mapping[str, Any] | None  #: what was spent
    hostile: int  #: how many hostile contributors were expected


def report(
    community: Community, number: int, given: Sequence[Contribution], gated: Gated, merged: Merged
) -> dict[str, Any]:
    """Return the report."""
    left_out = {name: f"it holds {why}" for name, why in merged.merge["excluded"].items()}
    contents, said = {each.member: each for each in given}, gated.scores
    contributors = {
        name: {
            "content": contents[name].content,
            "bytes": contents[name].size,
            "norm": gated.norms[name],
            **told,
            "quality": merged.quality[name],
            "score": _told(said.get(name, Scores()).quality),
            "safety": _told(said.get(name, Scores()).safety),
        }
        for name, told in beside_each(merged.members, merged.beside).items()
    }
    config = community.config
    worse = merged.after.worse(gated.before, config.safety_threshold)
    return {
        **head(community, number, merged.merge["merger"]),
        "hostile": merged.hostile,
        "tolerated_byzantine": merged.merge["tolerated_byzantine"],
        "contributed": len(given),
        "accepted": sorted(merged.members),
        "trimmed": dict(merged.trimmed),
        "refused": {**gated.refused, **left_out},
        "refused_at_upload": community.refusals(number),
        "contributors": contributors,
        **before_and_after(gated.before, merged.after),
        "published": "base" if worse else "result",
        "privacy": None if merged.privacy is None else dict(merged.privacy),
        "rewards": {
            "scheme": config.reward_scheme if config.enable_rewards else None,
            "pool": config.reward_pool if config.enable_rewards else 0,
            "points": dict(merged.points),
        },
        "merge": of_merge(merged.merge),
        "remarks": _remarks(community, merged, worse),
    }


def for_all(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what anybody may see of a report: with privacy nothing that was seen of single contributions."""
    if report["privacy"] is None:
        return dict(report)
    return {**report, "contributors": {}, "trimmed": {}, "remarks": [*report["remarks"], KEPT]}


def head(community: Community, number: int, merger: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a report says of a round before anything happened in it."""
    base = community.base
    return {
        "server": community.server,
        "round": number,
        "base": {"name": base.name, "fingerprint": base.fingerprint},
        "rules": community.config.model_dump(mode="json", exclude={"folder", "method"}),
        "merger": merger,
    }


def beside_each(names: Sequence[str], beside: BesideResult) -> dict[str, dict[str, float]]:
    """Return what is seen of each beside the result."""
    columns = (beside.distances, beside.cosines, beside.trimmed)
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    return {name: {"distance": distance, "cosine": cosine, "trimmed": share} for name, distance, cosine, share in rows}


def before_and_after(before: Scores, after: Scores) -> dict[str, Any]:
    """Return what a report says of the base and of the result."""
    return {
        "scores": {"before": _told(before.quality), "after": _told(after.quality)},
        "safety": {"before": _told(before.safety), "after": _told(after.safety)},
    }


def _told(score: float | None) -> float | None:
    """Return a score; JSON has neither NaN nor infinity, which what is broken scores."""
    return score if score is not None and isfinite(score) else None


def of_merge(merge: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a report keeps of that of a merge."""
    return {key: value for key, value in merge.items() if key not in ("inputs", "base")}


def _remarks(community: Community, merged: Merged, worse: str) -> list[str]:
    found = []
    if not merged.merge["tolerated_byzantine"]:
        found.append(f"{len(merged.members)} contributors leave room for no hostile one: tolerated_byzantine = 0.")
    if community.evaluate is None:
        found.append("Nothing was evaluated: there was no gate, and quality is the cosine of a change to the result.")
    if worse:
        found.append(f"The result {worse}, so the base stays.")
    if merged.privacy is not None:
        found.append(
            "Scores, distances, reputations and rewards are computed from what is not noised: keep them private."
        )
    if community.ledger.identity("enrolment") == "open":
        found.append(OPEN)
    return found
