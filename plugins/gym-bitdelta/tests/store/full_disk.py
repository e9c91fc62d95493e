"""Writes to a store on a file system that fills up: `unshare -rm python full_disk.py FOLDER ROOM...` mounts one there.

For each trial, it prints what was said when a variant was created, updated and removed with so many bytes left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kills import GONE, artifact, sound, state

from gym_bitdelta.store import VariantStore
from gym_core import GymError


def said(step: Callable[[], object]) -> str:
    """Return the error of a step; empty where there is none."""
    try:
        step()
    except GymError as error:
        return str(error)
    return ""


def trial(disk: Path, sources: Path, room: int) -> dict[str, object]:
    """Fill a disk, try everything, make room, try again."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], check=True)
    before, after = artifact(sources / "before", "before"), artifact(sources / "after", "after")
    with VariantStore(disk / "store") as store:
        store.create("ann", before)
        left = os.statvfs(disk)
        ballast = disk / "ballast"
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, left.f_bavail * left.f_frsize - room)
        update, create = said(lambda: store.update("ann", after)), said(lambda: store.create("bob", after))
        held = [state(store, "ann"), state(store, "bob")] if room else []
        expected = [["before", "after"][not update], [GONE, "after"][not create]]
        ballast.unlink()
        store.gc()
        whole = sound(store)
        held = held or [state(store, "ann"), state(store, "bob")]
        store.update("ann", before)
        found = {"said": [update, create], "held": held, "expected": expected, **whole}
    subprocess.run(["umount", "-l", str(disk)], check=True)
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place / "disk").mkdir()
    for number, room in enumerate(sys.argv[2:]):
        print(json.dumps(trial(place / "disk", place / str(number), int(room))))
