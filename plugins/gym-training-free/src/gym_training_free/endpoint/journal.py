"""What was asked and what came back, a JSON line each: a run that was killed goes on without asking again.

A call is known by epoch, batch, question, sample and role, and each time that it is sent by its attempt. The line `sent` is
written before a request leaves; one that no other line answers was under way when the run ended, and stays in the ledger.
A line is on the disk before anything follows from it, so that it survives the death of the machine too.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gym_core.errors import BusyError, GymError
from gym_training_free.endpoint.ledger import Charge
from gym_training_free.endpoint.reply import ChatReply


class Key(NamedTuple):
    """Names a call of a run, whatever its text is: equal rollouts of one question differ in `sample`."""

    epoch: int
    batch: int
    question: int  #: its number among those to learn from, or held out; -1 for what is about a whole batch
    sample: int  #: -1 for what is about a whole group
    role: str


class Journal:
    """The journal of one run: in a file, or in memory alone where there is no path."""

    def __init__(self, path: Path | None, run: Mapping[str, Any]) -> None:
        """Read what is there of this very run, which `run` describes as plain data.

        Raises BusyError where the file is of another run, GymError where it is damaged.
        """
        self.path = path
        self.confirmed, self.lost = Charge(), Charge()  #: of the lines that were there
        self.left_out: dict[str, list[str]] = {}  #: parameters that a model refuses, by its name and its server
        self._replies: dict[Key, tuple[str, ChatReply]] = {}
        self._attempts: dict[Key, int] = {}
        self._noted: dict[Key, Any] = {}
        self._unanswered: dict[Key, str] = {}
        self._lock, self._file = threading.Lock(), -1
        self._syncing, self._written, self._synced = threading.Lock(), 0, 0
        lines = self._read()
        if lines and lines[0] != {"run": json.loads(json.dumps(run))}:
            raise BusyError(
                "the journal is of a run with other questions, rewards, options, prompts or another model",
                where=str(path),
                fix="choose another `output`, or the options of that run",
            )
        self._take(lines[1:])
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if not lines:
            self._write({"run": run})
            if path is not None:
                _sync_folder(path.parent)

    def reply(self, key: Key, digest: str) -> ChatReply | None:
        """Return the reply to this request, where it was given."""
        found = self._replies.get(key)
        return found[1] if found and found[0] == digest else None

    def attempts(self, key: Key) -> int:
        """Return how often a call was sent."""
        return self._attempts.get(key, 0)

    def sent(self, key: Key, digest: str, most: Charge) -> None:
        """Note that a request is about to leave."""
        attempt = self._attempts[key] = self.attempts(key) + 1
        self._write({"sent": [*key, attempt], "request": digest, "most": most.to_json()})

    def replied(self, key: Key, digest: str, reply: ChatReply, charge: Charge, counted: bool) -> None:
        """Note a reply; `counted` says whether the server said what it used, or the charge is the most that it can be."""
        self._replies[key] = digest, reply
        line = {"reply": reply.to_json(), "request": digest, "charge": charge.to_json(), "counted": counted}
        self._write({"done": [*key, self.attempts(key)], **line})

    def failed(self, key: Key, why: str, charge: Charge) -> None:
        """Note that a request brought nothing, and the most that it can have cost."""
        self._write({"failed": [*key, self.attempts(key)], "why": why, "charge": charge.to_json()})

    def unanswered(self, calls: Mapping[Key, str]) -> None:
        """Note calls, with their requests, that the run went on without: another process asks them no more."""
        self._unanswered |= calls
        if calls:
            self._write({"unanswered": [[*key, digest] for key, digest in calls.items()]})

    def without(self, key: Key, digest: str) -> bool:
        """Whether the run went on without a reply to this request."""
        return self._unanswered.get(key) == digest

    def noted(self, key: Key, make: Callable[[], Any]) -> Any:
        """Return plain data that was made once, such as scores; make it where this is the first time."""
        if key not in self._noted:
            made = make()
            self._noted[key] = made
            self._write({"noted": list(key), "value": made})
        return self._noted[key]

    def leave_out(self, model: str, parameters: Iterable[str]) -> list[str]:
        """Note parameters that a model refuses; return those that nobody had noted."""
        with self._lock:
            known = self.left_out.setdefault(model, [])
            new = [name for name in parameters if name not in known]
            known += new
        for name in new:
            self._write({"left_out": [model, name]})
        return new

    def close(self) -> None:
        """Close the file."""
        with self._syncing, self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def _write(self, line: Mapping[str, Any]) -> None:
        data = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "backslashreplace")
        with self._lock:
            while data and self._file >= 0:  # a call that nobody waits for any more may come back late
                data = data[os.write(self._file, data) :]
            self._written += 1
            number = self._written
        self._sync(number)

    def _sync(self, number: int) -> None:
        """Wait until so many lines are on the disk. Who comes first sees to it for all that are written by then."""
        with self._syncing:
            if self._synced >= number:
                return
            with self._lock:
                written, file = self._written, self._file
            if file >= 0:
                os.fsync(file)
            self._synced = written

    def _read(self) -> list[dict[str, Any]]:
        """Return the whole lines of the file; cut off one that a killed process did not finish."""
        if self.path is None or not self.path.exists():
            return []
        data = self.path.read_bytes()
        # No line holds a zero byte: there a machine lost what it had not written, and nothing behind it was waited for.
        sound = data.partition(b"\0")[0]
        whole = sound[: sound.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))
        found = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                found.append(dict(json.loads(line)))
            except (ValueError, TypeError):
                fix = "move the file away to begin again"
                raise GymError("is no line of a journal", where=f"{self.path}:{number}", fix=fix) from None
        return found

    def _take(self, lines: list[dict[str, Any]]) -> None:
        """Take up what an earlier process wrote. Raises GymError where a line is not what this package writes."""
        flying: dict[tuple[Any, ...], Charge] = {}
        try:
            for line in lines:
                if "sent" in line:
                    self._attempts[Key(*line["sent"][:5])] = line["sent"][5]
                    flying[tuple(line["sent"])] = Charge.from_json(line["most"])
                elif "unanswered" in line:
                    self._unanswered |= {Key(*call[:5]): call[5] for call in line["unanswered"]}
                elif "noted" in line:
                    self._noted[Key(*line["noted"])] = line["value"]
                elif "left_out" in line:
                    model, name = line["left_out"]
                    self.left_out.setdefault(model, []).append(name)
                else:
                    done = "done" in line
                    call = tuple(line["done" if done else "failed"])
                    del flying[call]
                    charge = Charge.from_json(line["charge"])
                    if done:
                        used = charge.usage if line["counted"] else None
                        self._replies[Key(*call[:5])] = (
                            line["request"],
                            replace(ChatReply.from_json(line["reply"]), usage=used),
                        )
                    if done and line["counted"]:
                        self.confirmed += charge
                    else:
                        self.lost += charge
        except (KeyError, TypeError, ValueError, IndexError) as error:
            fix = "move the file away to begin again"
            raise GymError(f"holds a line that no journal has: {error!r:.60}", where=str(self.path), fix=fix) from None
        self.lost += sum(flying.values(), Charge())


def _sync_folder(folder: Path) -> None:
    """Have the disk know that a file is there."""
    if os.name == "posix":
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
