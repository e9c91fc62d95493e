"""The steps of a round with secure aggregation, in the ledger's file: who sent what, and what comes next."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf
from secrets import randbits
from typing import Any

from gym_core import GymError
from gym_deltasoup.ledger.ledger import Contribution
from gym_deltasoup.rounds.checks import Refused
from gym_deltasoup.secure.group_merge import groups
from gym_deltasoup.secure.member import PublicKeys, Reveal

STEPS = ("advertise", "share", "masked", "confirm", "reveal", "over")
ADVERTISE, SHARE, MASKED, CONFIRM, REVEAL, OVER = STEPS


@dataclass(frozen=True)
class Team:
    """A group whose sum alone is known."""

    advertised: dict[str, Mapping[str, Any]]  #: by member: what it signed
    shares: dict[str, Mapping[str, str]]  #: by member who shared: what it wrote for each other
    came: dict[str, str]  #: by member whose numbers are here: the SHA-256 of their file
    confirmed: dict[str, Mapping[str, Any]]  #: by member: what it signed of whose numbers came
    reveals: dict[str, Mapping[str, Mapping[str, str]]]  #: by member

    @property
    def threshold(self) -> int:
        """How many of it have to be left in each step: more than half."""
        return len(self.advertised) // 2 + 1

    def waits_for(self, step: str) -> set[str]:
        """Return who has not sent what a step asks for; nobody where too few were left before."""
        before: dict[str, tuple[Collection[str], Collection[str]]] = {
            SHARE: (self.advertised, self.shares),
            MASKED: (self.shares, self.came),
            CONFIRM: (self.came, self.confirmed),
            REVEAL: (self.confirmed, self.reveals),
        }
        asked, sent = before[step]
        return {*asked} - {*sent} if len(asked) >= self.threshold else set()

    def keys(self) -> dict[str, PublicKeys]:
        """Return the public keys."""
        return {
            name: PublicKeys(bytes.fromhex(said["step"]["shares"]), bytes.fromhex(said["step"]["masks"]))
            for name, said in self.advertised.items()
        }

    def revealed(self) -> dict[str, Reveal]:
        """Return the shares that take the masks away."""

        def numbers(told: Mapping[str, str]) -> dict[str, int]:
            return {name: int(each, 16) for name, each in told.items()}

        return {name: Reveal(numbers(each["own"]), numbers(each["keys"])) for name, each in self.reveals.items()}


def context(server: str, round_: int) -> bytes:
    """Return what names a round, so that no share or mask counts elsewhere. A member is in one group of a round."""
    return f"{server}/{round_}".encode()


def standing(rows: sqlite3.Connection, number: int) -> tuple[str, float]:
    """Return the step of a round, and when it ends."""
    found = rows.execute("SELECT step, ends FROM secure_rounds WHERE round = ?", (number,)).fetchone()
    return (ADVERTISE, inf) if found is None else (str(found[0]), float(found[1]))


def teams(rows: sqlite3.Connection, number: int, member: str | None = None) -> list[Team]:
    """Return the groups of a round, by their numbers, or that of a member alone; none before they were drawn."""
    drawn = rows.execute("SELECT teams FROM secure_rounds WHERE round = ?", (number,)).fetchone()
    held: list[list[str]] = json.loads("[]" if drawn is None else drawn[0])
    return [_team(rows, number, sorted(names)) for names in held if member is None or member in names]


def _team(rows: sqlite3.Connection, number: int, names: list[str]) -> Team:
    """Read what these said alone: a round may have thousands of members, who each ask for their group every second."""
    asked = (number, json.dumps(names))
    query = "SELECT member, content FROM contributions WHERE round = ? AND member IN (SELECT value FROM json_each(?))"
    came = dict(rows.execute(f"{query} ORDER BY member", asked))
    said: dict[str, dict[str, Any]] = {ADVERTISE: {}, SHARE: {}, CONFIRM: {}, REVEAL: {}}
    query = "SELECT member, step, said FROM secure_said WHERE round = ? AND member IN (SELECT value FROM json_each(?))"
    for member, step, text in rows.execute(f"{query} ORDER BY member", asked):
        said[step][member] = json.loads(text)
    return Team(said[ADVERTISE], said[SHARE], came, said[CONFIRM], said[REVEAL])


def may_send(rows: sqlite3.Connection, given: Contribution, size: int) -> None:
    """Raise Refused for masked numbers that are not asked for."""
    step, _ = standing(rows, given.round)
    if step != MASKED:
        raise Refused(f"round {given.round} is at the step `{step}`", key="round", fix="come to the next")
    if not any(given.member in team.waits_for(MASKED) for team in teams(rows, given.round, given.member)):
        raise Refused(f"no numbers of {given.member} are waited for in round {given.round}", key="member")
    if given.size != size:
        raise Refused(f"{given.size:,} bytes, and {size:,} are asked for", key="size")


def keep(rows: sqlite3.Connection, number: int, step: str, member: str, said: Mapping[str, Any]) -> None:
    """Write down what a member sent for a step; the same again changes nothing. Raises Refused for what is not asked for."""
    text = json.dumps(said)
    query = "SELECT said FROM secure_said WHERE round = ? AND member = ? AND step = ?"
    held = rows.execute(query, (number, member, step)).fetchone()
    if held is not None and held[0] == text:
        return
    now, _ = standing(rows, number)
    if now != step:
        raise Refused(f"round {number} is at the step `{now}`, not `{step}`", key="step", fix="come to the next round")
    if step != ADVERTISE:  # where a member who begins again has other keys
        if held is not None:
            raise Refused(f"{member} sent something else for this step", key="step")
        team = next((each for each in teams(rows, number, member) if member in each.waits_for(step)), None)
        if team is None:
            raise Refused(f"nothing of {member} is waited for in this step", key="member")
        _check_names(team, step, member, said)
    rows.execute("INSERT OR REPLACE INTO secure_said VALUES (?, ?, ?, ?)", (number, member, step, text))


def _check_names(team: Team, step: str, member: str, said: Mapping[str, Any]) -> None:
    """Raise Refused where shares are for others than the group, others would have come, or both of one would be revealed."""
    others = {*team.advertised} - {member}
    if step == SHARE and {*said} != others:
        raise Refused("there is one share for each other member of the group", key="shares")
    if step == CONFIRM and said["step"]["came"] != sorted(team.came):
        raise Refused("these are not the members whose numbers came", key="came")
    if step == REVEAL and ({*said["own"]} != {*team.came} or {*said["keys"]} != {*team.shares} - {*team.came}):
        raise Refused("these are not the shares that are asked for", key="own")


def advance(rows: sqlite3.Connection, number: int, now: float, seconds: float) -> str:
    """Go on to the next step where this one is over, or all that it asks for is there; return the step."""
    step, ends = standing(rows, number)
    if now + seconds < ends < inf:  # the clock was set back, and no step lasts longer for that
        ends = now + seconds
        rows.execute("UPDATE secure_rounds SET ends = ? WHERE round = ?", (ends, number))
    while step in (SHARE, MASKED, CONFIRM, REVEAL):
        if now < ends and any(team.waits_for(step) for team in teams(rows, number)):
            return step
        step, ends = STEPS[STEPS.index(step) + 1], now + seconds
        rows.execute("UPDATE secure_rounds SET step = ?, ends = ? WHERE round = ?", (step, ends, number))
    return step


def advertised(rows: sqlite3.Connection, number: int) -> list[str]:
    """Return who takes part in a round."""
    query = "SELECT member FROM secure_said WHERE round = ? AND step = ? ORDER BY member"
    return [str(member) for (member,) in rows.execute(query, (number, ADVERTISE))]


def draw(rows: sqlite3.Connection, number: int, size: int, ends: float) -> list[list[str]]:
    """Put those who advertised into groups, by a seed that nobody knew before. Raises GymError where they are too few."""
    found = groups(advertised(rows, number), size, randbits(62))
    rows.execute("INSERT INTO secure_rounds VALUES (?, ?, ?, ?)", (number, SHARE, ends, json.dumps(found)))
    return found


def prolong(rows: sqlite3.Connection, number: int, ends: float) -> None:
    """Let the step of a round last at least so long: a server that was down waits for those who waited for it."""
    rows.execute("UPDATE secure_rounds SET ends = max(ends, ?) WHERE round = ?", (ends, number))


def forget(rows: sqlite3.Connection, number: int) -> None:
    """Take away shares of a round that is over: nobody needs them, and they are halves of secrets."""
    rows.execute("DELETE FROM secure_said WHERE round <= ? AND step != ?", (number, ADVERTISE))


def told(rows: sqlite3.Connection, number: int, member: str) -> dict[str, Any]:
    """Return what a member has to know for the step of a round: nothing of others where it takes no part."""
    step, ends = standing(rows, number)
    query = "SELECT 1 FROM secure_said WHERE round = ? AND member = ? AND step = ?"
    advertised = rows.execute(query, (number, member, ADVERTISE)).fetchone() is not None
    found: dict[str, Any] = {"round": number, "step": step, "advertised": advertised}
    team = next(iter(teams(rows, number, member)), None)
    if team is None:
        return found
    found |= {"ends": ends, "members": team.advertised, "shared": sorted(team.shares), "came": sorted(team.came)}
    if step != SHARE:  # then it is known who shared
        found["shares"] = {by: each[member] for by, each in team.shares.items() if by != member}
    if step == REVEAL:  # then it is known who confirmed
        found["confirmed"] = team.confirmed
    return found


def require_over(rows: sqlite3.Connection, number: int) -> None:
    """Raise GymError where a round waits for somebody."""
    step, _ = standing(rows, number)
    if step != OVER:
        why = f"round {number} is at the step `{step}` of secure aggregation"
        raise GymError(why, key="round", fix="a server ends it: gym soup serve")
