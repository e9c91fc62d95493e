"""What others left in the folder of a store, or wrote into its index, is refused or left alone; it never leads elsewhere."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from gym_bitdelta.store import VariantStore
from gym_bitdelta.store.record import Variant, sha256
from gym_core import GymError

DELTA = "delta.safetensors"
posix = pytest.mark.skipif(os.name != "posix", reason="symbolic links and modes of POSIX")


def content(store: VariantStore, data: bytes) -> Path:
    """Return where the file with these bytes lies."""
    return next(path for path in (store.root / "files").glob("??/*") if path.read_bytes() == data)


@posix
def test_gc_leaves_what_links_name_alone(store, artifact, tmp_path):
    store.create("ann", artifact("one"))
    outside = tmp_path / "outside"
    (outside / "ab").mkdir(parents=True)
    (outside / "ab" / "kept").write_text("kept")
    (store.root / "open" / "1-dead").symlink_to(outside)
    (store.root / "files" / "zz").symlink_to(outside / "ab")
    store.gc()
    assert sorted(path.name for path in outside.rglob("*")) == ["ab", "kept"]


@posix
def test_gc_takes_nothing_through_a_link_in_the_place_of_its_folders(store, artifact, tmp_path):
    """`files` may lead to those of another store, and `open` to anybody's folders."""
    store.create("ann", artifact("one"))
    store.close()
    outside = tmp_path / "outside" / "1-0123abcd"
    outside.mkdir(parents=True)
    shutil.rmtree(store.root / "open")
    (store.root / "open").symlink_to(outside.parent)
    with VariantStore(tmp_path / "second") as second:
        (second.root / "files").symlink_to(store.root / "files")
        assert second.gc().files == 0
    assert store.gc().processes == 0 and outside.is_dir()
    shutil.rmtree(outside.parent)
    (store.root / "open").unlink()
    assert store.verify("ann")


@posix
def test_gc_leaves_the_folder_of_somebody_who_lets_nobody_write_there(store, artifact):
    store.create("ann", artifact("one"))
    folder = store.root / "open" / "1-0123abcd"
    folder.mkdir()
    (folder / ".lock").symlink_to("nowhere")  # which cannot be opened, whoever asks
    assert store.gc().processes == 0 and folder.is_dir()


def test_gc_takes_nothing_that_no_store_writes(store, artifact):
    store.create("ann", artifact("one"))
    mine = store.root / "open" / "mine"
    mine.mkdir()
    folder = content(store, b"one").parent
    (folder / "a-folder").mkdir()
    (folder / ".DS_Store").write_text("x")
    orphan = store.root / "files" / "00" / ("1" * 62)
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_text("left")
    assert store.gc().files == 1 and not orphan.exists()
    assert (folder / "a-folder").is_dir() and (folder / ".DS_Store").exists() and mine.is_dir()
    store.verify("ann")


@posix
def test_a_file_that_is_a_link_is_refused(store, artifact, tmp_path):
    """Whoever can change what it names would change what is open."""
    store.create("ann", artifact("one"))
    path, elsewhere = content(store, b"one"), tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(GymError, match="is no plain file") as caught:
        store.verify("ann")
    assert caught.value.problems[0].where == str(path)
    store.create("bob", artifact("one"))  # a sound file takes its place
    assert store.verify("ann") and not content(store, b"one").is_symlink()


@pytest.mark.parametrize("why", [errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_where_a_file_cannot_be_linked_it_is_copied(store, artifact, monkeypatch, why):
    """As one of another owner, which Linux lets nobody link, or one that has as many links as the file system allows."""
    store.create("ann", artifact("one"))

    def refuse(*paths: object, **options: object) -> None:
        raise OSError(why, os.strerror(why))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refuse)
        with store.open("ann") as found:
            store.remove("ann")
            assert (found.path / DELTA).read_text() == "one"


def forged(store: VariantStore, first: Variant, **changes: object) -> None:
    """Write a record whose hash is right into the index."""
    after = first.model_copy(update=changes)
    with store.index.writing() as connection:
        values = (after.user, after.number, sha256(after.text), after.text)
        connection.execute("UPDATE versions SET user = ?, number = ?, version = ?, record = ?", values)
        connection.execute("UPDATE files SET user = ?, version = ?", (after.user, sha256(after.text)))


@pytest.mark.parametrize("name", ["..\\..\\x", "C:x", "a\0b", "a\x1b[2J", "x" * 2_000, "a\\b", "../x", "/x"])
def test_a_record_whose_file_leads_elsewhere_on_some_system_is_damaged(store, artifact, name):
    first = store.create("ann", artifact("one"))
    files = tuple(each.model_copy(update={"name": name if each.name == DELTA else each.name}) for each in first.files)
    forged(store, first, files=files)
    with pytest.raises(GymError, match="is not what was written"):
        store.verify("ann")
    assert store.listing().damaged


@pytest.mark.parametrize(
    "artifact_said", [{"kind": "delta", "bogus": 1}, {}, {"path": 3, "kind": "delta", "base": "x"}]
)
def test_a_record_of_no_artifact_is_damaged(store, artifact, artifact_said):
    forged(store, store.create("ann", artifact("one")), artifact=artifact_said)
    with pytest.raises(GymError, match="is not what was written"), store.open("ann") as found:
        assert found.artifact


def test_a_record_of_a_user_that_is_none_is_damaged_and_told_in_print(store, artifact):
    forged(store, store.create("ann", artifact("one")), user="a\x1b[2J")
    (problem,) = store.listing().damaged
    assert "is not what was written" in problem.why and problem.why.isprintable()


@posix
def test_names_that_could_not_be_opened_elsewhere_are_refused_when_they_are_stored(store, artifact):
    given = artifact("one")
    (given.path / "a\\b").write_text("x")
    with pytest.raises(GymError, match="rename it"):
        store.create("ann", given)
    assert not store.listing().variants
