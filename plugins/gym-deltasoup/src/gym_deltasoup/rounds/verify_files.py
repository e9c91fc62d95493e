"""Whether the files that a ledger names are there, and are what was accepted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from gym_deltasoup.ledger.hash_chain import Event
from gym_deltasoup.rounds.contribution_store import Contents, hashed
from gym_deltasoup.rounds.secure_closing import MODEL


def verify_files(folder: Path, events: Iterable[Event]) -> list[str]:
    """Return what is wrong with the files that events name: contributions, and reports and models of rounds."""
    contents, problems = Contents(folder), []
    for event in events:
        data = event.data
        if data["event"] == "accepted":
            file = contents.path(data["content"])
            if not file.is_file() or hashed(file) != data["content"]:
                problems.append(f"the contribution of {data['member']} to round {event.round} is gone, or was changed")
        elif data["event"] == "round closed":
            report = folder / "rounds" / str(event.round) / "report.json"
            if not report.is_file() or hashlib.sha256(report.read_bytes()).hexdigest() != data["report"]:
                problems.append(f"the report of round {event.round} is gone, or was changed")
            for name, said in data.get("model", {}).items():
                file = report.with_name(MODEL) / name
                if not file.is_file() or hashed(file) != said["sha256"]:
                    problems.append(f"{name} of the model of round {event.round} is gone, or was changed")
    return problems
