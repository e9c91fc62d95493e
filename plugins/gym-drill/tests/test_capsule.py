"""`gym capsule`: what a run recorded in one file, and files that are none."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gym_core import GymError
from gym_drill import capsule
from gym_drill.capsule import MOST, SEAL, capsule_of, packed
from gym_drill.capsule_command import capsule as capsule_command
from gym_drill.reproduce_command import reproduce


def test_a_capsule_has_the_same_bytes_wherever_the_run_lies(run: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(run, tmp_path / "run")
    assert packed(capsule_of(run)) == packed(capsule_of(moved))
    done = CliRunner().invoke(capsule_command, [str(moved), "--json"], catch_exceptions=False)
    told = json.loads(done.stdout)
    assert (tmp_path / "run.capsule").read_bytes() == packed(capsule_of(run))
    assert told["bytes"] == (tmp_path / "run.capsule").stat().st_size
    read = capsule.read(tmp_path / "run.capsule")
    assert read.identity == capsule_of(run).identity and read.folder is None
    assert not any(str(run.parent) in json.dumps(part) for part in (read.record["trained"], read.record["artifact"]))


def rewritten(file: Path, change: Callable[[dict[str, bytes]], None], how: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def resealed(file: Path, name: str, data: bytes) -> None:
    """Put another member into a capsule, with the hash of it."""

    def change(members: dict[str, bytes]) -> None:
        seal = json.loads(members[SEAL])
        seal["sha256"][name] = hashlib.sha256(data).hexdigest()
        members.update({name: data, SEAL: json.dumps(seal).encode()})

    rewritten(file, change)


HARM: dict[str, tuple[Callable[[Path], None], str]] = {
    "no zip": (lambda file: file.write_bytes(b"hello"), "zip"),
    "cut short": (lambda file: file.write_bytes(file.read_bytes()[:-90]), "zip"),
    "a path out of the folder": (
        lambda file: rewritten(file, lambda all_: all_.update({"../x": b""})),
        "its members are others",
    ),
    "a member is missing": (lambda file: rewritten(file, lambda all_: all_.pop("run.json")), "its members are others"),
    "another recipe": (
        lambda file: rewritten(file, lambda all_: all_.update({"recipe.yaml": b"{}"})),
        "recipe.yaml is damaged",
    ),
    "compressed": (lambda file: rewritten(file, lambda all_: None, zipfile.ZIP_DEFLATED), "is compressed"),
    "too large": (
        lambda file: rewritten(
            file, lambda all_: all_.update({"packages.txt": b" " * (MOST["packages.txt"] * 2**20 + 1)})
        ),
        "packages.txt has more than",
    ),
    "a name that is a path": (
        lambda file: rewritten(file, lambda all_: all_.update({SEAL: all_[SEAL].replace(b'"run"', b'"../run"')})),
        "no name of a folder",
    ),
    "a record of another kind": (lambda file: resealed(file, "run.json", b"[]"), "its settings are not those of a run"),
    "lines of another kind": (
        lambda file: resealed(file, "metrics.jsonl", b"1\n"),
        "its metrics are not those of a run",
    ),
    "a name that draws on the terminal": (
        lambda file: rewritten(file, lambda all_: all_.update({SEAL: all_[SEAL].replace(b'"run"', b'"\\u001b[2J"')})),
        "no name of a folder",
    ),
    "weights of another kind": (
        lambda file: resealed(file, "weights.json", b'{"a": {"shape": [4], "dtype": "F32", "numbers": ["1", "2"]}}'),
        "its weights are not those of a run",
    ),
    "numbers that are none": (
        lambda file: resealed(file, "weights.json", b'{"a": {"shape": [1], "dtype": "F32", "numbers": ["one"]}}'),
        "is no whole",
    ),
    "a seal of another kind": (
        lambda file: rewritten(file, lambda all_: all_.update({SEAL: b"[" * 99999})),
        "is no whole",
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_or_hostile_capsule_is_refused(run: Path, tmp_path: Path, harm: str) -> None:
    file = tmp_path / "run.capsule"
    capsule.write(capsule_of(run), file)
    change, named = HARM[harm]
    change(file)
    with pytest.raises(GymError, match=named) as told:
        capsule.read(file)
    assert len(str(told.value).splitlines()) <= 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.capsule"]


def test_a_capsule_of_somebody_else_runs_nothing_unasked(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reward can be any function there is, and the recipe alone names it."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "run.capsule"
    capsule.write(capsule_of(run), file)
    reward = {"name": "python", "function": "os:system", "options": {"command": "touch ran"}}
    algorithm = {"name": "grpo", "rewards": [reward], "max_new_tokens": 4, "group_size": 2}
    harmful = {"model": "tiny", "algorithm": algorithm, "data": "tiny-tasks", "output": "run"}
    resealed(file, "recipe.yaml", yaml.safe_dump(harmful).encode())
    with pytest.raises(GymError, match="a recipe of somebody else") as told:
        CliRunner().invoke(reproduce, [str(file)], catch_exceptions=False)
    assert len(str(told.value).splitlines()) <= 4 and "--trust" in str(told.value)
    assert [path.name for path in tmp_path.iterdir()] == ["run.capsule"]
