"""Distributions that are too large, and what a flood of names costs: time grows with what is installed, not with its square."""

from __future__ import annotations

import time

from gym_core.discovery import installed

FLOOD = 300_000


def flood(site, count: int) -> None:
    lines = "".join(f"flood-{number} = gym_flood:Toy\n" for number in range(count))
    (site.root / "gym_flood-1.0.dist-info" / "entry_points.txt").write_text(f"[gym.algorithms]\n{lines}")


def test_three_hundred_thousand_names_cost_seconds(site, toy):
    site.add("gym-flood", toy)
    flood(site, FLOOD)
    for arguments in (
        ("--plugins", "list"),
        ("validate", site.recipe("toy")),
        ("doctor",),
        ("validate", site.recipe("nobody")),
    ):
        begun = time.monotonic()
        done = site.gym(*arguments)
        assert time.monotonic() - begun < 40, arguments
        assert "Traceback" not in done.stderr
    assert len(done.stderr) < 2000


def test_time_grows_with_the_number_of_names_and_not_with_its_square(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def seconds(count: int) -> float:
        info = tmp_path / "gym_flood-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "entry_points.txt").write_text(
            "[gym.algorithms]\n" + "".join(f"flood-{number} = gym_flood:Toy\n" for number in range(count))
        )
        installed.cache_clear()
        begun = time.process_time()
        found = installed().entries["algorithms"]
        spent = time.process_time() - begun
        assert sum(entry.dist == "gym-flood" for entry in found) == count
        return spent

    try:
        assert seconds(80_000) < 12 * seconds(20_000)
    finally:
        installed.cache_clear()
