"""One way to write files and folders: whole or not at all, whoever else writes them."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from gym_core.errors import RecipeError
from gym_core.files import expanded, replacing, write_atomically
from gym_core.outputlock import OutputLock


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "~nobody-of-this-name"])
def test_a_home_folder_that_nobody_has_is_refused_by_name(name: str) -> None:
    assert expanded("~/x") == Path.home() / "x" and expanded(Path("x~/y")) == Path("x~/y")
    with pytest.raises(RecipeError, match="no home folder is known for `~nobody-of-this-name`"):
        expanded(name)


def test_two_writers_at_once_leave_one_whole_text(tmp_path: Path) -> None:
    path, wrong = tmp_path / "text", []
    texts = {str(number) * 50_000 for number in range(4)}

    def work(text: str) -> None:
        for _ in range(8):
            write_atomically(path, text)
            wrong.extend({path.read_text()} - texts)

    writers = [threading.Thread(target=work, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not wrong and path.read_text() in texts
    assert [found.name for found in tmp_path.iterdir()] == ["text"]
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(_usual(tmp_path).stat().st_mode)


def _usual(folder: Path) -> Path:
    path = folder / "usual"
    path.touch()
    return path


def test_what_raises_leaves_the_old_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with replacing(path) as building:
        building.mkdir()
        (building / "weights").write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as building:
        building.mkdir()
        (building / "weights").write_text("half")
        raise KeyboardInterrupt
    with pytest.raises(OSError), replacing(path) as building:  # no folder goes over one that holds something
        building.mkdir()
        (building / "weights").write_text("new")
    assert [found.name for found in tmp_path.iterdir()] == ["model"]
    assert (path / "weights").read_text() == "old"


def test_a_disk_that_is_full_is_said_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "run.json"
    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError) as raised:
        write_atomically(path, "{}")
    assert raised.value.filename == str(path)
    with pytest.raises(OSError) as raised, OutputLock(tmp_path):
        pass
    assert raised.value.filename == str(tmp_path / ".lock")


def test_alone_it_removes_what_killed_writers_left_and_nothing_else(tmp_path: Path) -> None:
    with replacing(tmp_path / "run") as killed, replacing(tmp_path / "run.json") as of_another:
        killed.mkdir()
        of_another.write_text("{}")
        with replacing(tmp_path / "run", alone=True) as building:
            assert not killed.exists() and of_another.exists()
            building.write_text("whole")
        killed.write_text("later")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["run", "run.json"]
