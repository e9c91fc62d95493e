"""A community: a ledger, a base, and contributions that are accepted or refused. The Python API and the server stand upon it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from gym_core import Artifact, GymError, RecipeError
from gym_core.component import construct, load_object
from gym_core.errors import printable
from gym_core.files import expanded
from gym_deltasoup.config.community import DeltaSoupConfig
from gym_deltasoup.ledger.hash_chain import Event
from gym_deltasoup.ledger.ledger import Contribution, Ledger
from gym_deltasoup.rounds.base import Base
from gym_deltasoup.rounds.checks import Refused, check
from gym_deltasoup.rounds.contribution_store import MASKED, Contents, Limits
from gym_deltasoup.rounds.privacy_seam import RoundPrivacy
from gym_deltasoup.rounds.rules import check_rules
from gym_deltasoup.rounds.secure_steps import may_send
from gym_deltasoup.rounds.vectors import Layout, layout, numbers
from gym_deltasoup.secure.allowed import check_community
from gym_deltasoup.sources.models import quantized_by

PRIVACY = "gym_deltasoup.privacy.rounds:round_privacy"  #: makes the noise and the accounts of a community
UNQUANTIZED = "name the model that it was made from, or merge adapters: `kind: adapter`"
REFUSALS = 5  #: refused files of one member in a round, after which nothing more is looked at

Evaluate = Callable[[Artifact], float]


class Community:
    """One folder.

    Args:
        config: the rules.
        evaluate: says how good a model is, in place of the function that the configuration names.
        privacy: noise and its accounts, where the configuration asks for privacy.
        limits: how large things may be.

    Raises GymError where the folder cannot be used, or no round can end by the rules.

    """

    def __init__(
        self,
        config: DeltaSoupConfig,
        evaluate: Evaluate | None = None,
        privacy: RoundPrivacy | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Open the folder."""
        self.config = config
        self.folder = expanded(config.folder).absolute()
        self.evaluate = evaluate if evaluate is not None else _function(config.evaluate, "evaluate")
        self.safety = _function(config.evaluate_safety, "evaluate_safety")
        self.limits = Limits() if limits is None else limits
        if config.secure_aggregation:
            check_community(config, evaluated=self.evaluate is not None)
        check_rules(config, privacy, evaluated=self.evaluate is not None)
        self.ledger = Ledger(self.folder)
        self.contents = Contents(self.folder)
        self.privacy = privacy if privacy is not None else _privacy(config, self.folder)
        if config.base_model is not None:
            self.base = self.set_base(config.base_model)  # where it lies now: the ledger knows it by its fingerprint

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    @property
    def server(self) -> str:
        """Name of this community, drawn at random when its ledger was made."""
        return str(self.ledger.identity("server"))

    @cached_property
    def base(self) -> Base:
        """The model that everybody trains from. Raises GymError where nobody said which."""
        name = self.ledger.identity("base")
        if name is None:
            why = "nothing says which model the contributions were trained from"
            raise GymError(why, key="base_model", fix="name it: DeltaSoupConfig(base_model=...)")
        found = Base(name)
        if found.fingerprint != self.ledger.identity("base_fingerprint"):
            raise GymError(f"{name} is no longer the base of this community", where=str(self.folder), key="base_model")
        return found

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of what members add up under secure aggregation."""
        return layout(self.base, self.config.secure_layers, self.config.rank is not None)

    def set_base(self, name: str) -> Base:
        """Say which model contributions are trained from, once for ever. Raises GymError where another one was named."""
        found = Base(name)
        kind = MASKED if self.config.secure_aggregation and self.config.rank is None else self.config.kind
        if why := _no_sum(kind, found):
            raise GymError(why, where=str(found.path), key="base_model", fix=UNQUANTIZED)
        with self.ledger.writing() as rows:
            held = dict(rows.execute("SELECT name, value FROM identity"))
            if "base_fingerprint" not in held:
                told = {"base": found.name, "base_fingerprint": found.fingerprint}
                rows.executemany("INSERT INTO identity VALUES (?, ?)", told.items())
                self.ledger.append(rows, "base", self.ledger.round().number, name=name, fingerprint=found.fingerprint)
            elif held["base_fingerprint"] != found.fingerprint:
                why = f"this community trains from {held['base']}, fingerprint {held['base_fingerprint'][:12]}, not {name}"
                raise GymError(why, where=str(self.folder), key="base_model", fix="use another `folder`")
        return found

    def admit(self, rows: sqlite3.Connection, given: Contribution) -> Event | None:
        """Return the event that accepted just this contribution before; None for a new one that may come.

        Raises Refused for one that may not, whatever its file holds.
        """
        query = "SELECT content, event FROM contributions WHERE round = ? AND member = ?"
        held = rows.execute(query, (given.round, given.member)).fetchone()
        if held is not None and held[0] == given.content:
            return Event(*rows.execute("SELECT * FROM events WHERE number = ?", (held[1],)).fetchone())
        newest = self.ledger.round()
        if given.round != newest.number or newest.state != "open":
            state = f"round {newest.number} is {newest.state}"
            raise Refused(f"this is for round {given.round}, and {state}", key="round", fix="contribute to the next")
        if held is not None:
            raise Refused(f"{given.member} contributed to round {given.round} already", key="member")
        self.check_budget(given.member)
        if given.size > self.limits.contribution_bytes:
            why = f"{given.size:,} bytes are more than {self.limits.contribution_bytes:,}"
            raise Refused(why, key="size", fix="contribute an adapter or a compressed delta")
        held_kind = rows.execute("SELECT value FROM identity WHERE name = 'kind'").fetchone()
        kind = self.config.kind or (held_kind and held_kind[0])
        if kind is not None and kind != given.kind:
            raise Refused(f"it is of kind {given.kind}, and this community merges kind {kind}", key="kind")
        if self.config.secure_aggregation != (given.kind == MASKED):
            raise in_the_open() if self.config.secure_aggregation else Refused("nothing is masked here", key="kind")
        if why := "" if given.kind == MASKED else _no_sum(given.kind, self.base):
            raise Refused(why, key="base_model", fix=UNQUANTIZED)
        if self.config.secure_aggregation:
            may_send(rows, given, 4 * numbers(self.layout))
        if self.privacy is not None and given.kind == "delta":
            raise Refused("compressed deltas are not merged with privacy", key="kind", fix="export it: gym export")
        first = "SELECT round, member FROM contributions WHERE content = ? ORDER BY event LIMIT 1"
        copied = rows.execute(first, (given.content,)).fetchone()
        if copied is not None and copied[1] != given.member:
            raise Refused(f"somebody contributed these very bytes to round {copied[0]} already", key="content")
        (count,) = rows.execute("SELECT count(*) FROM contributions WHERE round = ?", (given.round,)).fetchone()
        if count >= self.config.max_contributors:
            raise Refused(f"round {given.round} has its {count} contributions", key="round", fix="come to the next")
        refusals = "SELECT count(*) FROM refusals WHERE round = ? AND member = ?"
        if rows.execute(refusals, (given.round, given.member)).fetchone()[0] >= REFUSALS:
            raise Refused(f"{REFUSALS} files of {given.member} were refused in this round", key="member")
        return None

    def release(self, number: int) -> str:
        """Return what the accounts of contributors call the result of a round."""
        return f"{self.server}/{number}"

    def check_budget(self, member: str) -> None:
        """Raise Refused for a member whose privacy budget one more round would exceed: with it no round could end."""
        try:
            if self.privacy is not None:
                self.privacy.admit(self.release(self.ledger.round().number), [member])
        except GymError as error:
            raise Refused(error.problems[0].why, key="privacy_budget") from None

    def accept(self, given: Contribution, file: Path, **proof: Any) -> Event:
        """Take a file, which is moved, and return the event that says so: by then it is on the disk.

        Accepting the same again returns the same event. `proof` is what the ledger holds beside: who signed what.

        Raises Refused where it may not come or is no sound file for the base, which the ledger then holds; and OSError or
        FullError where the disk does not take it.
        """
        with self.ledger.writing() as rows:
            if (before := self.admit(rows, given)) is not None:
                file.unlink(missing_ok=True)
                return before
        try:
            if given.kind != MASKED:  # of which the size is all that can be looked at
                limit = self.limits.header_bytes
                check(file, given.kind, given.details, self.base, self.config.max_change, limit)
        except Refused as error:
            self.refuse(given, error.problems[0].why)
            raise
        self.contents.take(file, given.content)
        with self.ledger.writing() as rows:
            if (before := self.admit(rows, given)) is not None:
                return before
            if self.ledger.member(given.member) is None:
                self.enrol(rows, given.member, None)
            if self.ledger.identity("kind") is None:
                rows.execute("INSERT INTO identity VALUES ('kind', ?)", (given.kind,))
            told = {"member": given.member, "content": given.content, "size": given.size, "kind": given.kind}
            event = self.ledger.append(rows, "accepted", given.round, **told, details=dict(given.details), **proof)
            rows.execute(
                "INSERT INTO contributions VALUES (?, ?, ?, ?, ?, ?, ?, NULL)",
                (given.round, *told.values(), json.dumps(dict(given.details)), event.number),
            )
            rows.execute("DELETE FROM uploads WHERE round = ? AND member = ?", (given.round, given.member))
        return event

    def refuse(self, given: Contribution, why: str) -> None:
        """Write down that a file was refused, and forget its upload."""
        why = printable(why, 300)
        with self.ledger.writing() as rows:
            rows.execute("INSERT INTO refusals VALUES (?, ?, ?)", (given.round, given.member, why))
            rows.execute("DELETE FROM uploads WHERE round = ? AND member = ?", (given.round, given.member))
            self.ledger.append(rows, "refused", given.round, member=given.member, content=given.content, why=why)

    def enrol(self, rows: sqlite3.Connection, name: str, key: str | None, identity: str | None = None) -> None:
        """Add a member inside a transaction."""
        number = self.ledger.round().number
        rows.execute(
            "INSERT INTO members (name, key, identity, round) VALUES (?, ?, ?, ?)", (name, key, identity, number)
        )
        self.ledger.append(rows, "enrolled", number, member=name, key=key)

    def refusals(self, number: int) -> list[Mapping[str, str]]:
        """Return whose files were refused in a round when they came, and why."""
        with self.ledger.database.reading() as rows:
            found = rows.execute("SELECT member, why FROM refusals WHERE round = ?", (number,))
            return [{"member": member, "why": why} for member, why in found]


def _no_sum(kind: str | None, base: Base) -> str:
    """Return why no whole model can be made of contributions of a kind and a base; empty where one can, or none is made."""
    method = quantized_by(base.path) if kind not in (None, "adapter") else ""
    return method and f"{base.name} is quantized ({method}), and nothing can be added to codes of weights"


def in_the_open() -> Refused:
    """Return the refusal of a contribution that can be read, where none shall be."""
    why = "this community adds up masked numbers, and a contribution in the open would show what one member trained"
    return Refused(why, key="secure_aggregation", fix="contribute to its server: gym soup contribute")


def _function(reference: str | None, key: str) -> Evaluate | None:
    if reference is None:
        return None
    try:
        found: Evaluate = load_object(reference)
    except (ImportError, AttributeError) as error:
        why = f"there is no function `{reference}` ({error})"
        raise RecipeError(why, key=key, fix="write `package.module:function`, of what is installed") from None
    return found


def _privacy(config: DeltaSoupConfig, folder: Path) -> RoundPrivacy | None:
    if not config.differential_privacy:
        return None
    try:
        found: RoundPrivacy = construct(PRIVACY, config, folder)
    except ModuleNotFoundError:
        why = "this version of gym-deltasoup adds no noise"
        raise GymError(why, key="differential_privacy", fix="leave it out, or give `privacy`") from None
    return found
