"""The store: what was stored is what is opened, whatever others do meanwhile; what is wrong is refused and changes nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gym_bitdelta.store import NOT_EVALUATED, Variant, VariantStore
from gym_bitdelta.store.record import StoredFile, now
from gym_core import BusyError, GymError

DELTA = "delta.safetensors"


def files(store: VariantStore) -> list[Path]:
    return sorted((store.root / "files").glob("??/*"))


def opened(store: VariantStore) -> list[Path]:
    """Return the folders in which this process has files open."""
    return list((store.root / "open").glob("*/[0-9]*"))


def test_what_is_stored_is_opened_and_told(store, artifact):
    given = artifact("one")
    made = store.create("ann", given, quality={"loss": 1.5, "by": ["rows", 20]})
    assert store.get("ann") == made and made.number == 1 and made.parent is None
    assert made.safety == NOT_EVALUATED == "not evaluated"
    with store.open("ann") as found:
        assert found.variant == made
        assert (found.artifact.kind, found.artifact.base) == ("delta", "the-base")
        assert found.artifact.details == {"delta": "bitdelta", "layers": [1, 2]}
        for name in (DELTA, "tokenizer/added.json"):
            assert (found.artifact.path / name).read_bytes() == (given.path / name).read_bytes()
        assert made.bytes == 5
    assert not opened(store)


def test_an_update_names_the_version_before_it_and_takes_the_place_of_its_files(store, artifact):
    first = store.create("ann", artifact("one"))
    second = store.update("ann", artifact("two"), quality={"loss": 1.0}, parent=first.id)
    third = store.evaluated("ann", safety={"asr": 0.02})
    assert store.lineage("ann") == [first, second, third]
    assert [each.parent for each in store.lineage("ann")] == [None, first.id, second.id]
    assert third.quality == {"loss": 1.0} and third.safety == {"asr": 0.02} and third.files == second.files
    assert [path.read_text() for path in files(store) if path.stat().st_size == 3] == ["two"]
    with store.open("ann") as found:
        assert (found.path / DELTA).read_text() == "two"


def test_files_that_are_alike_are_there_once_and_as_long_as_one_needs_them(store, artifact):
    store.create("ann", artifact("same"))
    store.create("bob", artifact("same"))
    assert len(files(store)) == 2
    store.remove("ann")
    store.verify("bob")
    store.update("bob", artifact("other"))  # the other file stays the same
    store.verify("bob")
    store.remove("bob")
    assert not files(store) and not store.listing().variants


def test_what_is_open_stays_whatever_becomes_of_the_variant(store, artifact):
    store.create("ann", artifact("one"))
    with store.open("ann") as first, VariantStore(store.root) as other:
        path = store.locate("ann")
        other.update("ann", artifact("two"))
        with store.open("ann") as second:
            other.remove("ann")
            other.gc()
            assert (first.path / DELTA).read_text() == path.read_text() == "one"
            assert (second.path / DELTA).read_text() == "two"
        with pytest.raises(GymError, match="there is no variant of `ann`"):
            store.locate("ann")
        assert path.exists()  # who serves it goes on, although there is no newer one
        other.create("ann", artifact("three"))
        assert store.locate("ann").read_text() == "three" and not path.exists()
    store.release("ann")
    assert not opened(store)
    with pytest.raises(GymError, match="has no file `x`"):
        store.locate("ann", "x")
    assert not opened(store)


def test_threads_that_locate_a_user_do_not_take_the_files_of_each_other(store, artifact):
    store.create("ann", artifact("one"))
    path = store.locate("ann")
    with ThreadPoolExecutor(4) as threads:
        started = threading.Barrier(4)

        def locate(number):
            started.wait()
            return [store.locate("ann") for _ in range(5)][-1]

        found = [path, *threads.map(locate, range(4))]
        assert [each.read_text() for each in found] == ["one"] * 5
        assert len(opened(store)) == 5, "no thread leaves more than it was last given"
        store.release("ann")
    assert not opened(store)


def test_opening_and_updating_at_the_same_time(store, artifact):
    """A reader finds a whole version each time, although its files go at any moment."""
    sources = [artifact(text * 1000) for text in "ab"]
    store.create("ann", sources[0])
    seen, ended = set(), threading.Event()

    def read() -> None:
        with VariantStore(store.root) as other:
            while not ended.is_set():
                with other.open("ann") as found:
                    seen.add((found.path / DELTA).read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(12):
        store.update("ann", sources[number % 2])
    ended.set()
    reader.join()
    assert seen <= {"a" * 1000, "b" * 1000} and seen
    assert len(store.lineage("ann")) == 13


def test_a_reader_sees_one_state_of_the_index_whatever_is_written_meanwhile(store, artifact):
    """Else it would take the rows of two versions for damage."""
    store.create("ann", artifact("one"))
    with VariantStore(store.root) as other, store.index.reading() as connection:
        before = store.index.rows(connection, "ann")
        other.evaluated("ann", quality={"loss": 1.0})
        assert store.index.rows(connection, "ann") == before
        assert store.index.newest(connection, "ann").number == 1 and not store.index.listing(connection).damaged
    assert store.get("ann").number == 2


def test_one_of_two_updates_of_the_same_version_is_refused(store, artifact):
    first = store.create("ann", artifact("one"))
    store.update("ann", artifact("two"), parent=first.id)
    with pytest.raises(BusyError, match="another version of `ann` was stored since"):
        store.update("ann", artifact("three"), parent=first.id)
    with pytest.raises(BusyError, match="another version of `ann` was stored since"):
        # figures of the first are not its
        store.evaluated("ann", safety={"asr": 0.0}, parent=first.id)
    with pytest.raises(GymError, match="already"):
        store.create("ann", artifact("three"))
    with pytest.raises(GymError, match="there is no variant of `bob`"):
        store.update("bob", artifact("three"))
    with store.open("ann") as found:
        assert (found.path / DELTA).read_text() == "two"
    assert len(files(store)) == 2


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("../../etc/passwd", "is a path"),
        ("/etc/passwd", "is a path"),
        ("a\\b", "is a path"),
        ("..", "is a path"),
        ("C:x", "is a path"),
        ("base", "is reserved"),
        ("NUL.txt", "is reserved"),
        ("x" * 10_000, "10,000 characters"),
        ("", "0 characters"),
        (" ann", "space"),
        ("a\nb", "printed"),
        ("a\x1b[2J", "printed"),
        ("\ud800", "printed"),
        ("e\u0301", "normal form"),
        (7, "no text"),
        (None, "no text"),
    ],
)
def test_an_id_that_is_none_is_refused(store, artifact, user, why):
    for use in (lambda: store.create(user, artifact("one")), lambda: store.get(user), lambda: store.remove(user)):
        with pytest.raises(GymError, match=why) as caught:
            use()
        assert len(str(caught.value).splitlines()) <= 4 and len(str(caught.value)) < 600
        assert str(caught.value).replace("\n", "").isprintable()
    assert not store.listing().variants and not files(store)


@pytest.mark.parametrize(
    "user", ["user_123", "ann@example.com", "Ünï 用户 🦒", "-x", "a'b\"; DROP TABLE versions", "x" * 256]
)
def test_any_other_text_is_an_id(store, artifact, user):
    store.create(user, artifact("one"))
    assert store.verify(user).user == user
    assert [each.user for each in store.listing().variants] == [user]


def nested(levels: int) -> dict[str, Any]:
    """Return mappings in each other."""
    made: dict[str, Any] = {"x": 1}
    for _ in range(levels - 1):
        made = {"x": made}
    return made


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        "safe",
        {"loss": float("nan")},
        {"x": object()},
        {"x": "y" * 70_000},
        {"x": "\ud800"},
        nested(205),
        nested(9000),
        3,
    ],
)
def test_evidence_that_is_none_is_refused(store, artifact, evidence):
    """That a record could not be read with, too."""
    with pytest.raises(GymError, match=r"evidence|plain data|at most|deep") as caught:
        store.create("ann", artifact("one"), safety=evidence)
    assert caught.value.problems[0].key == "safety"
    assert not store.listing().variants


def test_evidence_as_deep_as_may_be_is_read_again(store, artifact):
    store.create("ann", artifact("one"), quality=nested(64))
    assert store.get("ann").quality == nested(64)


def test_a_file_in_the_place_of_a_store_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GymError, match="no index can be made here"):
        VariantStore(tmp_path / "file")


def test_an_artifact_without_files_is_refused(store, artifact, tmp_path):
    given = artifact("one")
    shutil.rmtree(given.path)
    given.path.mkdir()
    with pytest.raises(GymError, match="there are 0 files"):
        store.create("ann", given)


def test_every_flipped_bit_of_a_file_is_named_and_refused(store, artifact):
    store.create("ann", artifact("one"))
    store.create("bob", artifact("two"))
    delta = next(path for path in files(store) if path.read_bytes() == b"one")
    for position in range(8 * 3):
        data = bytearray(b"one")
        data[position // 8] ^= 1 << position % 8
        delta.write_bytes(data)
        for use in (store.verify, store.locate):
            with pytest.raises(GymError, match=r"`delta.safetensors` of `ann` is not what was written") as caught:
                use("ann")
            assert caught.value.problems[0].where == str(delta)
    assert not opened(store)
    store.verify("bob")
    delta.unlink()
    with pytest.raises(GymError, match=r"`delta.safetensors` of `ann` is gone"):
        store.verify("ann")
    store.create("carl", artifact("one"))  # the same content puts it right
    store.verify("ann")


def test_a_flipped_bit_of_the_index_never_makes_another_variant(tmp_path, artifact):
    """Whatever can still be read is what was written; whatever cannot be is an error that names the index."""
    root = tmp_path / "store"
    with VariantStore(root) as store:
        for user in ("ann", "bob"):
            store.create(user, artifact(user))
            store.update(user, artifact(user * 2), quality={"loss": 1.0})
        sound = {each.user: store.lineage(each.user) for each in store.listing().variants}
    whole = (root / "index.sqlite").read_bytes()
    used = [place for place, byte in enumerate(whole) if byte]
    refused = 0
    for place in used[:: len(used) // 100]:
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        (root / "index.sqlite").write_bytes(data)
        wrong = []
        try:
            with VariantStore(root) as store:
                found = store.listing()
                wrong += [*found.damaged, *store.problems()]
                for each in found.variants:
                    try:
                        assert store.lineage(each.user) == sound[each.user]
                    except GymError as error:
                        wrong += error.problems
                assert wrong or {each.user for each in found.variants} == sound.keys(), place
                if found.damaged:
                    before = files(store)
                    with pytest.raises(GymError):
                        store.gc()
                    assert files(store) == before
        except GymError as error:
            wrong += error.problems
        assert all("index.sqlite" in each.where for each in wrong)
        refused += bool(wrong)
    assert refused > 30


def test_files_without_an_index_are_never_taken_for_an_empty_store(store, artifact):
    store.create("ann", artifact("one"))
    store.close()
    (store.root / "index.sqlite").unlink()
    with pytest.raises(GymError, match="the index that names them is gone"):
        VariantStore(store.root)
    (store.root / "index.sqlite").touch()
    with pytest.raises(GymError, match="layout 0"):
        VariantStore(store.root)
    assert len(files(store)) == 2
    with pytest.raises(GymError, match="there is no store"):
        VariantStore(store.root / "elsewhere", create=False)
    assert not (store.root / "elsewhere").exists()


def test_what_is_open_in_a_process_is_left_and_what_a_dead_one_had_is_collected(store, artifact):
    store.create("ann", artifact("one"))
    dead = store.root / "open" / "1-deadbeef"
    dead.mkdir()
    os.link(files(store)[0], dead / "left")
    with store.open("ann") as found, VariantStore(store.root) as other:
        with other.open("ann"):
            left = store.gc()
            assert (left.files, left.processes) == (0, 1) and not dead.exists()
            assert len(opened(store)) == 2
        assert (found.path / DELTA).read_text() == "one"


def test_a_forked_process_has_a_connection_and_files_of_its_own(store, artifact):
    store.create("ann", artifact("one"))
    located = store.locate("ann")
    with store.open("ann") as found:
        child = os.fork()
        if not child:
            try:
                store.update("ann", artifact("two"))
                store.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert store.get("ann").number == 2
        assert (found.path / DELTA).read_text() == located.read_text() == "one"


def test_ten_thousand_variants_open_in_a_second(tmp_path):
    root = tmp_path / "store"
    with VariantStore(root) as store, store.index.writing() as connection:
        for number in range(10_000):
            file = StoredFile(name=DELTA, sha256=f"{number:064x}", bytes=2**20)
            first = Variant(
                user=f"user_{number}",
                number=1,
                parent=None,
                created=now(),
                artifact={"kind": "delta", "base": "the-base", "details": {}, "task": "causal-lm", "path": "."},
                files=(file,),
            )
            store.index.add(connection, first)
    began = time.process_time()
    with VariantStore(root, create=False) as store:
        assert store.get("user_77").files[0].sha256 == f"{77:064x}"
        assert time.process_time() - began < 0.1
        assert len(store.listing().variants) == 10_000
    assert time.process_time() - began < 3  # 0.4 on an idle machine; its caches are shared with other tests here


def test_a_writer_that_waits_too_long_is_told(store, artifact, monkeypatch):
    monkeypatch.setattr("gym_data.database.WAIT", 0.05)
    other = sqlite3.connect(store.root / "index.sqlite", isolation_level=None)
    store.close()
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(BusyError, match="others have been writing"):
        store.create("ann", artifact("one"))
    other.execute("ROLLBACK")
    other.close()
    store.create("ann", artifact("one"))


def test_who_there_is_costs_nothing_until_somebody_writes(store, artifact):
    assert list(store.index.users()) == []
    store.create("cleo", artifact("one"))
    first = store.create("ann", artifact("two"))
    found = store.index.users()
    assert list(found) == ["ann", "cleo"] and store.index.users() is found
    with VariantStore(store.root) as another:  # as another process has it open
        another.create("ben", artifact("three"))
        another.update("ann", artifact("four"), parent=first.id)
    assert list(store.index.users()) == ["ann", "ben", "cleo"]
    store.remove("cleo")
    assert list(store.index.users()) == ["ann", "ben"]
    store.close()
    with VariantStore(store.root) as another:
        another.remove("ann")
    assert list(store.index.users()) == ["ben"]
    with sqlite3.connect(store.index.path) as connection:
        connection.execute("UPDATE versions SET record = 'x' WHERE user = 'ben'")
    assert list(store.index.users()) == ["ben"]  # who asks for it is told
    with pytest.raises(GymError, match="not what was written"):
        store.get("ben")
