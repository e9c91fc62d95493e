"""What a server does for secure aggregation: it hands on what members send each other, and goes on by the clock."""

from __future__ import annotations

import time
from typing import Any

from gym_deltasoup.config.server import SoupServerConfig
from gym_deltasoup.rounds import secure_steps as steps
from gym_deltasoup.rounds.checks import Refused
from gym_deltasoup.rounds.community import Community
from gym_deltasoup.rounds.vectors import digest, numbers
from gym_deltasoup.server.requests import Advertise, SignedStep, check_clock, check_signed, parsed
from gym_deltasoup.server.uploads import Unknown


class SecureRounds:
    """Steps of rounds. Those of before the server was started go on, and last as long again."""

    def __init__(self, community: Community, config: SoupServerConfig) -> None:
        """Go on with the round that is open. Raises GymError where the base has no such layers."""
        self.community, self.config = community, config
        self.digest = digest(community.layout)
        with community.ledger.writing() as rows:
            steps.prolong(rows, community.ledger.round().number, time.time() + config.secure_seconds)

    def told(self) -> dict[str, Any]:
        """Return what members have to know before they take part."""
        config = self.config
        with self.community.ledger.database.reading() as rows:
            number = self.community.ledger.round().number
            step, members = steps.standing(rows, number)[0], len(steps.advertised(rows, number))
        rules = {"group": config.secure_group, "clip": config.secure_clip, "layers": [*config.secure_layers]}
        rules |= {"adapter": config.rank is not None, "layout": self.digest, "numbers": numbers(self.community.layout)}
        return {**rules, "step": step, "members": members}

    def take(self, body: bytes) -> dict[str, Any]:
        """Keep what a member says in a step; the same again changes nothing. Raises Refused."""
        said = parsed(SignedStep, body)
        step, community = said.step, self.community
        told = check_signed(step, "secure", said.signature, community)
        check_clock(step.time, self.config.limits.clock_seconds)
        with community.ledger.writing() as rows:
            now = community.ledger.round()
            if (step.round, now.state) != (now.number, "open"):
                raise Refused(f"this is for round {step.round}, and round {now.number} is {now.state}", key="round")
            if isinstance(step, Advertise):
                self._check_room(rows, step)
            steps.keep(rows, now.number, step.step, step.member, step.kept(told, said.signature))
            return steps.told(rows, now.number, step.member)

    def state(self, member: str) -> dict[str, Any]:
        """Return what a member has to know for the step of the round. Raises Unknown."""
        if self.community.ledger.member(member) is None:
            raise Unknown("there is no such member")
        with self.community.ledger.database.reading() as rows:
            return steps.told(rows, self.community.ledger.round().number, member)

    def advance(self) -> bool:
        """Go on where a step is over; return whether the round is."""
        config, ledger, now = self.config, self.community.ledger, time.time()
        with ledger.writing() as rows:
            held = ledger.round()
            if steps.standing(rows, held.number)[0] != steps.ADVERTISE:
                return steps.advance(rows, held.number, now, config.secure_seconds) == steps.OVER
            count = len(steps.advertised(rows, held.number))
            over = held.is_over(now, config.contribution_window)
            enough = count >= max(config.min_contributors, config.secure_group)
            if (over and enough) or count >= config.max_contributors:
                drawn = steps.draw(rows, held.number, config.secure_group, now + config.secure_seconds)
                ledger.append(rows, "groups drawn", held.number, groups=drawn)
        return False

    def _check_room(self, rows: Any, step: Advertise) -> None:
        if step.layout != self.digest:
            why = "it would add up other weights, or in another order, than this community"
            raise Refused(why, key="layout", fix="train from the base of the community, of the same version")
        self.community.check_budget(step.member)
        there = steps.advertised(rows, step.round)
        if step.member not in there and len(there) >= self.config.max_contributors:
            raise Refused(f"round {step.round} has its {len(there)} members", key="round", fix="come to the next")
