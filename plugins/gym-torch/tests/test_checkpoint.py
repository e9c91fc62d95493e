"""Checkpoints on disk: whole, or refused by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gym_core import GymError
from gym_torch.checkpoints.checkpoint_folders import Checkpoints, problem


def fill(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        (path / "weights.safetensors").write_text(text * 100)
        (path / "state.json").write_text(text)

    return write


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def two(directory: Path) -> tuple[Checkpoints, list[str]]:
    said: list[str] = []
    checkpoints = Checkpoints(directory, 2, said.append)
    for step in (5, 10):
        checkpoints.save(step, fill(str(step)))
    return checkpoints, said


@pytest.mark.parametrize("damage", [truncate, empty, flip, remove])
@pytest.mark.parametrize("name", ["weights.safetensors", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_it_used(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    checkpoints, said = two(tmp_path)
    damage(tmp_path / "step-00000010" / name)
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.name == "step-00000005"
    assert len(said) == 1
    assert "step-00000010 is refused" in said[0]
    assert name in said[0]
    assert (tmp_path / "refused-step-00000010").is_dir()


def test_flipped_bits_of_a_manifest_are_blamed_on_it(tmp_path: Path) -> None:
    two(tmp_path)
    manifest = tmp_path / "step-00000010" / "manifest.json"
    sound = manifest.read_bytes()
    for position in range(0, len(sound), 7):
        data = bytearray(sound)
        data[position] ^= 1 << (position % 7)
        manifest.write_bytes(data)
        assert problem(manifest.parent) == "manifest.json is damaged"
    manifest.write_bytes(sound)
    assert not problem(manifest.parent)


def test_swapped_and_foreign_files_are_noticed(tmp_path: Path) -> None:
    two(tmp_path)
    old, new = tmp_path / "step-00000005", tmp_path / "step-00000010"
    (new / "optimizer.pt").write_text("?")
    assert problem(new) == "optimizer.pt does not belong to it"
    (old / "manifest.json").write_bytes((new / "manifest.json").read_bytes())
    assert problem(old) == "manifest.json belongs to step 10"


def test_shards_that_changed_places_are_noticed(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        for number in (1, 2):
            (path / f"model-0000{number}-of-00002.safetensors").write_text(str(number) * 100)

    said: list[str] = []
    checkpoints = Checkpoints(tmp_path, 2, said.append)
    for step in (5, 10):
        checkpoints.save(step, write)
    first, second = sorted((tmp_path / "step-00000010").glob("model-*"))
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    latest = checkpoints.latest()
    assert latest is not None and latest.name == "step-00000005"
    assert "model-00001-of-00002.safetensors is not what was written" in said[0]


def test_a_clock_that_was_set_back_changes_nothing(tmp_path: Path) -> None:
    checkpoints, said = two(tmp_path)
    for path in (tmp_path / "step-00000010").iterdir():
        os.utime(path, (1, 1))
    os.utime(tmp_path / "step-00000010", (1, 1))
    latest = checkpoints.latest()
    assert latest is not None and latest.name == "step-00000010" and not said
    checkpoints.save(15, fill("15"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010", "step-00000015"]


def test_the_best_stays_until_a_better_one_is_whole(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 1, print)
    names = []
    for step, best in [(5, 5), (10, 5), (15, 5), (20, 20), (25, 20)]:
        checkpoints.save(step, fill(str(step)), best)
        names.append([int(path.name[5:]) for path in sorted(tmp_path.iterdir())])
    assert names == [[5], [5, 10], [5, 15], [20], [20, 25]]

    def fails(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(GymError):
        checkpoints.save(30, fails, best=30)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000020", "step-00000025"]


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    checkpoints, said = two(tmp_path)
    (tmp_path / ".step-00000015.building").mkdir()
    (tmp_path / ".step-00000001.old").mkdir()
    latest = checkpoints.latest()
    assert latest is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000010"]
    assert not said


@pytest.mark.parametrize("killed", ["", "before the new one is in place", "before the old one is gone"])
def test_a_checkpoint_of_the_same_step_gives_way_and_a_kill_leaves_one_of_them(tmp_path: Path, killed: str) -> None:
    checkpoints, said = two(tmp_path)
    checkpoints.save(10, fill("again"))
    path, aside = tmp_path / "step-00000010", tmp_path / ".step-00000010.before"
    assert not aside.exists()
    if killed:
        shutil.copytree(path, aside)
    if "new" in killed:
        shutil.rmtree(path)
    assert checkpoints.latest() == path and not problem(path) and not said
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-00000005", "step-00000010"]


def test_the_oldest_go_when_there_is_no_room(tmp_path: Path) -> None:
    checkpoints, _ = two(tmp_path)
    checkpoints.save(15, fill("15"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010", "step-00000015"]


def test_a_failed_write_leaves_the_others_alone(tmp_path: Path) -> None:
    checkpoints, _ = two(tmp_path)

    def fails(path: Path) -> None:
        (path / "weights.safetensors").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(GymError, match="No space left") as caught:
        checkpoints.save(15, fails)
    assert "step-00000010" in caught.value.problems[0].fix
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000010"]
    assert not problem(tmp_path / "step-00000010")


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none", 2, print).latest() is None
