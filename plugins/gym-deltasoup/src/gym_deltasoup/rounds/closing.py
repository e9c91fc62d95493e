"""The end of a round: what was accepted is gated, merged, measured, rewarded and written down, all of it or nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

from gym_core import Artifact, GymError
from gym_core.files import remove, replacing
from gym_core.outputlock import OutputLock
from gym_deltasoup.artifact_merge import merge_artifacts
from gym_deltasoup.ledger import merkle
from gym_deltasoup.ledger.hash_chain import anchor
from gym_deltasoup.ledger.ledger import Ledger
from gym_deltasoup.rewards.schemes import Known, rewards
from gym_deltasoup.rounds.community import Community
from gym_deltasoup.rounds.contribution_gate import Gate, usable
from gym_deltasoup.rounds.contribution_store import without_change
from gym_deltasoup.rounds.model_scores import scored
from gym_deltasoup.rounds.published import named
from gym_deltasoup.rounds.replay_detection import Earlier, keep, seed_of
from gym_deltasoup.rounds.reputation import reputations, weights
from gym_deltasoup.rounds.round_report import Merged, report
from gym_deltasoup.rounds.secure_closing import MODEL, made_of_groups
from gym_deltasoup.rounds.secure_steps import forget
from gym_deltasoup.rounds.update_statistics import BesideResult, beside_result
from gym_deltasoup.vector_merge import expected
from gym_deltasoup.work_folders import TAKEN, clear_left

FOLDER, REPORT = "rounds", "report.json"

Sign = Callable[[bytes], str]
"""Signs a message with the key of a server: hexadecimal."""


@dataclass(frozen=True)
class RoundResult:
    """What a round made."""

    artifact: Artifact  #: the merged model or adapter, or the base where that is better
    report: Mapping[str, Any]

    @property
    def tolerated_byzantine(self) -> int:
        """How many hostile contributors the result tolerated."""
        return int(self.report["tolerated_byzantine"])

    @property
    def is_merged(self) -> bool:
        """Whether it is what was merged, and not the base."""
        return bool(self.report["published"] == "result")

    @property
    def rewards(self) -> dict[str, int]:
        """Points of each contributor."""
        return dict(self.report["rewards"]["points"])


def close_round(community: Community, least: int | None = None, sign: Sign | None = None) -> RoundResult:
    """End the round that is open, and open the next.

    A process that dies meanwhile leaves a round that is closing, which the next call ends. Where too few contributions are
    accepted, or they cannot be merged, the round is open again.

    Raises GymError then, BusyError where another process ends the round, and OSError where the disk does not take it.

    """
    ledger, folder = community.ledger, community.folder / FOLDER
    with OutputLock(folder):
        clear_left(community.folder, TAKEN)
        number = ledger.round().number
        _state(ledger, number, "closing")
        try:
            work, final = folder / f".work-{number}", folder / str(number)
            remove(work)
            remove(final)  # of a process that died before the ledger said so
            with replacing(final, alone=True) as building:
                building.mkdir(parents=True)
                try:
                    made = made_of_groups if community.config.secure_aggregation else _made
                    found = made(community, number, least, work, building)
                finally:
                    remove(work)
                (building / REPORT).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            _written(community, number, found, final, sign)
        except BaseException:
            _state(ledger, number, "open")
            raise
    return result(community, number)


def result(community: Community, number: int) -> RoundResult:
    """Return what a round that is closed made. Raises GymError where it is not closed."""
    path = community.folder / FOLDER / str(number) / REPORT
    if community.ledger.round(number).state != "closed" or not path.is_file():
        raise GymError(f"round {number} is not closed", where=str(community.folder))
    told = json.loads(path.read_text(encoding="utf-8"))
    base = community.base
    kept = Artifact(base.path, details={"base": base.name, "base_fingerprint": base.fingerprint})
    return RoundResult(Artifact.read(path.with_name(MODEL)) if told["published"] == "result" else kept, told)


def _made(community: Community, number: int, least: int | None, work: Path, building: Path) -> dict[str, Any]:
    config, base, ledger = community.config, community.base, community.ledger
    wanted = config.min_contributors if least is None else least
    given = ledger.contributions(number)
    if len(given) < wanted:
        raise _too_few(number, wanted, len(given), 0)
    others = community.privacy is None  # with it, contributions of others decide nothing; results are for all to see
    gate = Gate(community, work, Earlier.of(community.folder / FOLDER, number, others))
    gated = gate.judged(usable(community, given, work / "given"))
    if len(gated.inputs) < wanted:
        raise _too_few(number, wanted, len(gated.inputs), len(gated.refused))
    members = [each.name for each in gated.inputs]
    merger, privacy, release = config.method, community.privacy, community.release(number)
    if privacy is not None:
        merger = privacy.merger(merger)
        privacy.admit(release, members)
    held = ledger.members()
    shares = weights({name: held[name].reputation for name in members}) if merger.takes_weights() else {}
    inputs = [replace(each, weight=shares.get(each.name)) for each in gated.inputs]
    everybody = (
        inputs if privacy is None else [*inputs, *without_change(inputs[0], gated.refused, base, work / "zeros")]
    )
    hostile = expected(merger, len(everybody), None, config.byzantine_threshold)
    merged = merge_artifacts(
        merger,
        everybody,
        building / MODEL,
        base=base.name,
        hostile=hostile,
        evaluate=community.evaluate if merger.needs_evaluation else None,
        rank=config.rank,
        announce=partial(click.echo, err=True),
    )
    spent = None if privacy is None else privacy.spend(release, members)
    after = scored(community, merged.artifact)
    tolerated = merged.tolerated_byzantine
    seed = seed_of(ledger)
    beside = beside_result(everybody, base.path, work / "beside", merged.artifact, tolerated, seed).first(len(members))
    quality = gated.quality if gated.quality is not None else _cosines(members, beside)
    trimmed = _trimmed(members, beside, tolerated / len(everybody))
    participation = ledger.participation(number)
    rewarded = [name for name in members if name not in trimmed]
    known = Known(
        {name: quality[name] for name in rewarded},
        {name: (participation[name] * _earlier(number) + 1) / (_earlier(number) + 1) for name in rewarded},
        {name: cosine for name, cosine in _cosines(members, beside).items() if name in rewarded},
        gate.value({each.name: each for each in inputs}, merger, wanted=tolerated),
    )
    points = dict.fromkeys(sorted({*members, *gated.refused}), 0)
    if config.enable_rewards:
        points |= rewards(known, config)
    facts = Merged(merged.report, members, beside, trimmed, quality, after, points, spent, hostile)
    found = report(community, number, given, gated, facts)
    own = torch.stack([gated.sketches[name] for name in members])
    keep(building, members, torch.cat([own, beside.sketch]) if found["published"] == "result" else own)
    return found


def _written(community: Community, number: int, found: Mapping[str, Any], final: Path, sign: Sign | None) -> None:
    """Write down what came of a round, and open the next, in one transaction."""
    ledger = community.ledger
    with ledger.writing() as rows:
        bodies = [
            body for (body,) in rows.execute("SELECT body FROM events WHERE round = ? ORDER BY number", (number,))
        ]
        root = merkle.root([body.encode() for body in bodies]).hex()
        told = {
            "accepted": found["accepted"],
            "refused": found["refused"],
            "points": found["rewards"]["points"],
            "pool": found["rewards"]["pool"],
            "tolerated_byzantine": found["tolerated_byzantine"],
            "published": found["published"],
            "model": named(final / MODEL) if found["published"] == "result" else {},
            "report": hashlib.sha256((final / REPORT).read_bytes()).hexdigest(),
            "events": len(bodies),
            "root": root,
        }
        if sign is not None:
            told["signature"] = sign(anchor(community.server, number, root))
        ledger.append(rows, "round closed", number, **told)
        if community.config.secure_aggregation:
            forget(rows, number)
        for name, value in {} if community.config.secure_aggregation else reputations(ledger.members(), found).items():
            rows.execute("UPDATE members SET reputation = ? WHERE name = ?", (value, name))
        for name in found["accepted"]:
            rows.execute("UPDATE contributions SET passed = 1 WHERE round = ? AND member = ?", (number, name))
        rows.execute("UPDATE rounds SET state = 'closed' WHERE number = ?", (number,))
        ledger.open_round(rows, number + 1)


def _state(ledger: Ledger, number: int, state: str) -> None:
    with ledger.writing() as rows:
        rows.execute("UPDATE rounds SET state = ? WHERE number = ? AND state != 'closed'", (state, number))


def _too_few(number: int, wanted: int, found: int, refused: int) -> GymError:
    beside = f", and {refused} were refused" if refused else ""
    return GymError(
        f"round {number} needs {wanted} contributors, and there are {found}{beside}",
        key="min_contributors",
        fix="wait for more contributions, or lower it",
    )


def _cosines(members: list[str], beside: BesideResult) -> dict[str, float]:
    return {name: max(0.0, cosine) for name, cosine in zip(members, beside.cosines.tolist(), strict=True)}


def _trimmed(members: list[str], beside: BesideResult, tolerated: float) -> dict[str, float]:
    """Return what share of its numbers a merger trimmed, by each member that it trimmed more of than chance would.

    A rule that tolerates a share of inputs trims twice that share; the bound is half way between it and all.
    """
    least = (1 + 2 * tolerated) / 2
    return {name: share for name, share in zip(members, beside.trimmed.tolist(), strict=True) if share > least}


def _earlier(number: int) -> int:
    """Return how many rounds before this one count for participation."""
    return min(9, number - 1)
