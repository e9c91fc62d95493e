"""Uploads that may break off anywhere: a part counts when it is on the disk, and the whole is what was signed."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from gym_core import GymError
from gym_data.database import FullError
from gym_deltasoup.config.server import ServerLimits
from gym_deltasoup.ledger.hash_chain import Event
from gym_deltasoup.ledger.ledger import Contribution
from gym_deltasoup.rounds.checks import Refused
from gym_deltasoup.rounds.community import Community
from gym_deltasoup.rounds.contribution_store import hashed

FOLDER = "uploads"


@dataclass(frozen=True)
class Upload:
    """An upload that is under way."""

    token: str  #: who knows it may go on
    size: int
    received: int  #: bytes that are on the disk


class Conflict(GymError):
    """A part that does not begin where the one before it ended; `received` says where that is."""

    def __init__(self, received: int) -> None:
        """Hold where to go on."""
        super().__init__(f"{received:,} bytes are here", key="Upload-Offset", fix="go on from there")
        self.received = received


class Unknown(GymError):
    """There is no such upload."""


class Uploads:
    """All that are under way. Those of before the server was started go on."""

    def __init__(self, community: Community, limits: ServerLimits) -> None:
        """Keep the parts under the folder of a community."""
        self.community, self.limits = community, limits
        self.folder = community.folder / FOLDER
        self.folder.mkdir(exist_ok=True)
        self.turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  #: of uploads under way, by token
        self.forget()

    def begin(self, given: Contribution, manifest: Mapping[str, Any], signature: str) -> Upload | Event:
        """Return the upload of a contribution, begun or to be gone on with; or the event that accepted it before.

        Raises Refused where it may not come, and FullError where the disk has no room.
        """
        room = shutil.disk_usage(self.folder).free - self.limits.free_bytes
        with self.community.ledger.writing() as rows:
            if (before := self.community.admit(rows, given)) is not None:
                return before
            query = "SELECT token, content, size, received FROM uploads WHERE round = ? AND member = ?"
            held = rows.execute(query, (given.round, given.member)).fetchone()
            text = json.dumps({"manifest": dict(manifest), "signature": signature})
            if held is not None and held[1:3] == (given.content, given.size):
                rows.execute("UPDATE uploads SET manifest = ? WHERE token = ?", (text, held[0]))
                return Upload(held[0], held[2], held[3])
            if held is not None:  # the file changed after the first part was sent
                rows.execute("DELETE FROM uploads WHERE token = ?", (held[0],))
                self._file(held[0]).unlink(missing_ok=True)
            under_way, left = rows.execute("SELECT count(*), coalesce(sum(size - received), 0) FROM uploads").fetchone()
            if under_way >= self.limits.uploads:
                raise FullError(f"{under_way} uploads are under way", key="uploads", fix="come again in a while")
            if given.size > room - left:
                raise FullError(f"there is no room for {given.size:,} bytes", key="size", fix="come again later")
            token = token_urlsafe(24)
            row = (token, given.round, given.member, given.content, given.size, 0, text, time.time())
            rows.execute("INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return Upload(token, given.size, 0)

    def find(self, token: str) -> Upload:
        """Return an upload. Raises Unknown where there is none."""
        with self.community.ledger.database.reading() as rows:
            found = rows.execute("SELECT token, size, received FROM uploads WHERE token = ?", (token,)).fetchone()
        if found is None:
            raise Unknown("there is no such upload", fix="begin again")
        return Upload(*found)

    def add(self, token: str, offset: int, part: bytes) -> Upload:
        """Write a part behind those that are there. Raises Conflict where it begins elsewhere, Refused where it is too much."""
        with self.turns[token]:
            found = self.find(token)
            if offset != found.received:
                raise Conflict(found.received)
            if offset + len(part) > found.size:
                raise Refused(
                    f"{offset + len(part):,} bytes are more than the {found.size:,} that were signed", key="size"
                )
            try:
                descriptor = os.open(self._file(token), os.O_WRONLY | os.O_CREAT, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.truncate(offset)  # what a process wrote that died before it was counted
                    file.seek(offset)
                    file.write(part)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                why = f"the disk does not take it: {error.strerror}"
                raise FullError(why, fix="come again later; what was sent before is kept") from error
            with self.community.ledger.writing() as rows:
                query = "UPDATE uploads SET received = ?, touched = ? WHERE token = ? AND received = ?"
                if rows.execute(query, (offset + len(part), time.time(), token, offset)).rowcount != 1:
                    raise Unknown("there is no such upload", fix="begin again")
            return Upload(token, found.size, offset + len(part))

    def finish(self, token: str) -> Event:
        """Accept an upload that is whole, and return the event. Raises Refused where it is not what was signed, or unsound."""
        self.find(token)  # a word that names no upload gets no turn, which would be kept
        with self.turns[token]:
            found = self.find(token)
            if found.received != found.size:
                raise Conflict(found.received)
            query = "SELECT round, member, content, size, manifest FROM uploads WHERE token = ?"
            with self.community.ledger.database.reading() as rows:
                round_, member, content, size, text = rows.execute(query, (token,)).fetchone()
            proof = json.loads(text)
            details = proof["manifest"]["details"]
            given = Contribution(round_, member, content, size, proof["manifest"]["kind"], details)
            file, place = self._file(token), self.community.contents.path(content)
            if not file.exists() and place.exists():  # moved by a process that died before it said so
                file.hardlink_to(place)
            try:
                if hashed(file) != content:
                    why = "its bytes are not those that were signed: they changed on the way, or after they were signed"
                    self.community.refuse(given, why)
                    raise Refused(why, key="content", fix="sign it again, and begin again")
                return self.community.accept(given, file, **proof)
            except Refused:
                with suppress(Unknown):
                    self.find(token)  # it may come again, as when a round was closing that could not end
                    raise
                file.unlink(missing_ok=True)
                raise
            except OSError as error:
                why = f"the disk does not take it: {error.strerror}"
                raise FullError(why, fix="come again later; what was sent is kept") from error
            finally:
                self.turns.pop(token, None)

    def forget(self) -> None:
        """Take away uploads that nobody goes on with, those of other rounds, and parts that belong to none."""
        files = [*self.folder.iterdir()]  # before it is asked which belong to an upload: others may begin meanwhile
        with self.community.ledger.writing() as rows:
            query = "DELETE FROM uploads WHERE touched < ? OR round < (SELECT max(number) FROM rounds)"
            rows.execute(query, (time.time() - self.limits.idle_seconds,))
            held = {token for (token,) in rows.execute("SELECT token FROM uploads")}
        for file in files:
            if file.name not in held:
                with suppress(OSError):
                    file.unlink()

    def _file(self, token: str) -> Path:
        return self.folder / token
