"""A store of 10,000 variants of the 30M model on disk: how long it takes to open, to list, to look one up and to verify them all.

Variants are deltas of rank 16 in one and two bits, of random codes; no two files are the same. Files are in the system's cache.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from click.testing import CliRunner
from peers.tenants import BASE, base, low_rank
from report import Report, main

from gym_bitdelta.delta import file
from gym_bitdelta.store import VariantStore
from gym_bitdelta.variants_commands import variants
from gym_core import Artifact

OPENS = 1.0  #: seconds that the index may take to open


def timed(step: Callable[[], object]) -> float:
    """Return the seconds of a step."""
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def command(*words: str) -> None:
    """Run a command of `gym variants` in this process."""
    done = CliRunner().invoke(variants, words)
    assert done.exit_code == 0, done.output


def fill(store: VariantStore, count: int, scratch: Path) -> None:
    """Store so many variants."""
    delta = low_rank(base(torch.float32), 0)
    artifact = Artifact(scratch, "delta", "base", {"delta": "gym_bitdelta:BitDelta"})
    for number in range(count):
        file.write(scratch / file.NAME, file.made(BASE, delta.records, {}, {"user": str(number)}))
        store.create(f"user_{number:05d}", artifact, quality={"recovered": 0.95, "delta": 1.3, "base": 1.5})


def disk(root: Path) -> int:
    """Return the bytes that a folder takes on the disk."""
    return 512 * sum(path.stat().st_blocks for path in root.rglob("*"))


def measure(report: Report, quick: bool) -> None:
    """Make a store, then use it."""
    count = 500 if quick else 10_000
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as path:
        root, scratch = Path(path) / "store", Path(path) / "scratch"
        scratch.mkdir()
        with VariantStore(root) as store:
            creating = timed(lambda: fill(store, count, scratch))
            size = store.get("user_00000").bytes
        folder = ["--store", str(root)]
        opening = [timed(lambda: VariantStore(root, create=False).get("user_00042")) for _ in range(5)]
        with VariantStore(root, create=False) as store:
            looking = [timed(lambda user=user: store.get(f"user_{user:05d}")) for user in range(0, count, count // 50)]  # type: ignore[misc]
            reading = [
                timed(lambda user=user: store.locate(f"user_{user:05d}")) for user in range(0, count, count // 50)
            ]  # type: ignore[misc]
            asking = timed(store.listing)
        seconds = {name: timed(lambda name=name: command(name, *folder)) for name in ("list", "verify", "gc")}  # type: ignore[misc]
        seconds["show"] = timed(lambda: command("show", "user_00042", *folder))
        report.figures[f"{count} variants"] = {
            "bytes_of_a_variant": size,
            "bytes_of_the_index": (root / "index.sqlite").stat().st_size,
            "bytes_on_disk": disk(root),
            "milliseconds_to_create_one": round(1e3 * creating / count, 2),
            "milliseconds_to_look_one_up": round(1e3 * statistics.median(looking), 3),
            "milliseconds_to_open_one": round(1e3 * statistics.median(reading), 3),
            "seconds_of_a_listing": round(asking, 3),
            "seconds_of_commands": {name: round(value, 3) for name, value in seconds.items()},
        }
        report.check("seconds to open the index and look one up", round(max(opening), 4), at_most=OPENS)
        report.check("bytes on disk, of those of the files", round(disk(root) / (size * count), 3), at_most=1.1)


if __name__ == "__main__":
    main(measure, __doc__ or "")
