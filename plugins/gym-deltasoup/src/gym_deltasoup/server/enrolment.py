"""Who may become a member of a community: anybody, who was invited, or one name for each proof."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from secrets import token_urlsafe

from gym_core import GymError
from gym_core.component import load_object
from gym_deltasoup.config.server import SoupServerConfig
from gym_deltasoup.ledger.ledger import Ledger
from gym_deltasoup.rounds.checks import Refused

Policy = Callable[[sqlite3.Connection, str, str], str | None]
"""Is given a transaction, the name of who comes and what was shown, and returns whose it is; None where nobody knows. Raises
Refused for who may not come."""


def policy(config: SoupServerConfig) -> Policy:
    """Return the policy of a server. Raises GymError where the function that verifies proofs is not there."""
    return {"open": _open, "invited": _invited, "proof": _proven}[config.enrolment](config)


def invite(ledger: Ledger) -> str:
    """Return a code that enrols one member. The ledger keeps its hash alone."""
    code = token_urlsafe(24)
    with ledger.writing() as rows:
        rows.execute("INSERT INTO invites (code) VALUES (?)", (_hash(code),))
    return code


def _open(config: SoupServerConfig) -> Policy:
    return lambda rows, name, shown: None


def _invited(config: SoupServerConfig) -> Policy:
    def enrols(rows: sqlite3.Connection, name: str, shown: str) -> str | None:
        query = "UPDATE invites SET member = ? WHERE code = ? AND member IS NULL"
        if rows.execute(query, (name, _hash(shown))).rowcount != 1:
            raise Refused("this is no invitation, or somebody used it", key="proof", fix="ask for one: gym soup invite")
        return None

    return enrols


def _proven(config: SoupServerConfig) -> Policy:
    assert config.verify_proof is not None, "the configuration asks for it"
    try:
        function: Callable[[str], str] = load_object(config.verify_proof)
    except (ImportError, AttributeError) as error:
        why = f"there is no function `{config.verify_proof}` ({error})"
        raise GymError(why, key="verify_proof", fix="write `package.module:function`, of what is installed") from None

    def enrols(rows: sqlite3.Connection, name: str, shown: str) -> str | None:
        try:
            whose = _hash(str(function(shown)))
        except ValueError as error:
            raise Refused(f"the proof does not hold: {str(error)[:100]}", key="proof") from None
        if rows.execute("SELECT 1 FROM members WHERE identity = ?", (whose,)).fetchone() is not None:
            raise Refused("who this proof belongs to is a member already", key="proof")
        return whose

    return enrols


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
