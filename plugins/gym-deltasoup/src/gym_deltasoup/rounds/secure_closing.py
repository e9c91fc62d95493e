"""The end of a round with secure aggregation: sums of groups are unmasked, and their means are merged by a robust rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import floor
from pathlib import Path
from typing import Any

import click
import numpy as np

from gym_core import GymError
from gym_deltasoup.artifact_merge import MergedArtifact, merge_artifacts
from gym_deltasoup.kinds import Merger, name_of, require
from gym_deltasoup.rounds.community import Community
from gym_deltasoup.rounds.model_scores import Scores, of_base, scored
from gym_deltasoup.rounds.replay_detection import seed_of
from gym_deltasoup.rounds.round_report import OPEN, before_and_after, beside_each, head, of_merge
from gym_deltasoup.rounds.secure_steps import Team, advertised, context, require_over, teams
from gym_deltasoup.rounds.update_statistics import BesideResult, beside, beside_result
from gym_deltasoup.rounds.vectors import numbers
from gym_deltasoup.secure.collector import unmasked
from gym_deltasoup.secure.fixed_point import decoded
from gym_deltasoup.sources.group_means import KIND, LAYERS, write_change
from gym_deltasoup.sources.inputs import Input
from gym_deltasoup.vector_merge import expected

MODEL = "model"
GROUPS = "Under secure aggregation nobody sees single contributions: rows are groups, and nobody is given points."


@dataclass
class Sums:
    """What came of the groups of a round."""

    inputs: list[Input] = field(default_factory=list)  #: means
    members: dict[str, list[str]] = field(default_factory=dict)  #: by group: of whom its mean is
    refused: dict[str, str] = field(default_factory=dict)  #: by member whose numbers came for nothing: why
    dropped: list[str] = field(default_factory=list)  #: who took part, and whose numbers did not come


def made_of_groups(community: Community, number: int, least: int | None, work: Path, building: Path) -> dict[str, Any]:
    """Merge the means of groups, and return the report.

    Keys and masks are for one round, so one that cannot be merged is closed as well: the base stays.
    Raises GymError where a round waits for somebody still, or the cap of a contributor would be exceeded.
    """
    config = community.config
    with community.ledger.database.reading() as rows:
        require_over(rows, number)
        found, everybody = teams(rows, number), advertised(rows, number)
    sums = _sums(community, number, found, work / "groups")
    sums.dropped = sorted({*everybody}.difference(*(team.came for team in found)))
    came = sorted(name for names in sums.members.values() for name in names)
    merger, privacy, release = config.method, community.privacy, community.release(number)
    if privacy is not None:
        merger = privacy.merger(merger)
    hostile = floor(config.byzantine_threshold * len(everybody) + 1e-9) if expected(merger, 1000, None) else 0
    wanted = config.min_contributors if least is None else least
    trouble = _trouble(merger, len(sums.inputs), hostile, len(came), wanted)
    if trouble:
        sums.refused |= dict.fromkeys(came, trouble)
        return _report(community, number, sums, hostile, None, None, {})
    if privacy is not None:
        privacy.admit(release, came)
    base = community.base
    into, announce = building / MODEL, partial(click.echo, err=True)
    merged = merge_artifacts(
        merger, sums.inputs, into, base=base.name, hostile=hostile, rank=config.rank, announce=announce
    )
    spent = None if privacy is None else privacy.spend(release, came)
    seed = seed_of(community.ledger)
    told = beside_result(sums.inputs, base.path, work / "beside", merged.artifact, merged.tolerated_byzantine, seed)
    norms = beside(sums.inputs, base.path, work / "norms", seed).norms.tolist()
    return _report(community, number, sums, hostile, merged, spent, _rows(sums, told, norms))


def _sums(community: Community, number: int, found: list[Team], folder: Path) -> Sums:
    """Unmask each group and write its mean. The numbers of its members stay in their files."""
    sums, shapes, config = Sums(), community.layout, community.config
    size = numbers(shapes)
    for place, team in enumerate(found):
        name = f"group {place + 1}"
        files = {member: community.contents.path(content) for member, content in team.came.items()}
        try:
            if len(team.came) < team.threshold:
                raise GymError(f"the numbers of {len(team.came)} members came, and {team.threshold} are needed")
            words = {member: np.memmap(file, "<u4", "r", shape=(size,)) for member, file in files.items()}
            of_round = context(community.server, number)
            total = unmasked(words, team.revealed(), team.keys(), team.shares, team.threshold, of_round)
        except (GymError, OSError, ValueError) as error:
            why = error.problems[0].why if isinstance(error, GymError) else str(error)
            sums.refused |= dict.fromkeys(team.came, f"its group has no sum: {why}")
            continue
        mean = decoded(total, config.secure_clip, len(team.advertised)) / len(team.came)
        kind = KIND if config.rank is None else LAYERS
        made = write_change(mean, shapes, folder / str(place + 1), kind, community.base.name)
        sums.inputs.append(Input(made.path, name))
        sums.members[name] = sorted(team.came)
    return sums


def _trouble(merger: Merger, groups: int, hostile: int, members: int, wanted: int) -> str:
    """Return why so many means cannot be merged; nothing where they can."""
    if not groups or members < wanted:
        return f"{wanted} members are needed, and the numbers of {members} came to a sum"
    try:
        require(merger, groups, hostile)
    except GymError as error:
        return f"{groups} groups are left: {error.problems[0].why}"
    return ""


def _rows(sums: Sums, found: BesideResult, norms: list[float]) -> dict[str, dict[str, Any]]:
    names = [each.name for each in sums.inputs]
    return {
        name: {"members": sums.members[name], "norm": norm, **told, "quality": max(0.0, told["cosine"]), "score": None}
        for norm, (name, told) in zip(norms, beside_each(names, found).items(), strict=True)
    }


def _report(
    community: Community, number: int, sums: Sums, hostile: int, merged: MergedArtifact | None,
    spent: Mapping[str, Any] | None, rows: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    method = community.config.method
    before = after = Scores()
    if merged is not None:
        before, after = of_base(community), scored(community, merged.artifact)
    merger = {"name": name_of(method), "options": method.model_dump(mode="json")}
    merge = {} if merged is None else merged.report
    left_out = {
        member: f"its group holds {why}"
        for name, why in merge.get("excluded", {}).items()
        for member in sums.members[name]
    }
    accepted = sorted(name for names in sums.members.values() for name in names) if merged is not None else []
    tolerated = merge.get("tolerated_byzantine", 0)
    least = (1 + 2 * tolerated / max(1, len(rows))) / 2
    worse = after.worse(before, community.config.safety_threshold)
    remarks = [GROUPS]
    if merged is None:
        remarks.append("Too little was left for a merge, so the base stays.")
    elif not tolerated:
        remarks.append(f"{len(rows)} groups leave room for no hostile one: tolerated_byzantine = 0.")
    if worse:
        remarks.append(f"The result {worse}, so the base stays.")
    if community.ledger.identity("enrolment") == "open":
        remarks.append(OPEN)
    return {
        **head(community, number, merge.get("merger", merger)),
        "hostile": hostile,
        "tolerated_byzantine": tolerated,
        "contributed": len(accepted) + len({*sums.refused} - {*accepted}),
        "accepted": accepted,
        "trimmed": {name: told["trimmed"] for name, told in rows.items() if told["trimmed"] > least},
        "refused": {**sums.refused, **left_out},
        "refused_at_upload": community.refusals(number),
        "dropped": sums.dropped,
        "contributors": dict(rows),
        **before_and_after(before, after),
        "published": "base" if merged is None or worse else "result",
        "privacy": None if spent is None else dict(spent),
        "rewards": {"scheme": None, "pool": 0, "points": {}},
        "merge": of_merge(merge),
        "remarks": remarks,
    }
