"""`gym variants`, as a person and as a program sees it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from gym_core.cli import run

LOADED = """
import sys
from gym_core.cli import run
code = run(sys.argv[1:])
print(sorted({"torch", "numpy", "transformers", "rich"} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def gym(store, monkeypatch, capsys):
    """Return a function that runs `gym variants` on a store with two users: exit code, output and errors."""
    monkeypatch.setenv("GYM_VARIANTS", str(store.root))

    def command(*arguments: str) -> tuple[int, str, str]:
        code = run(["variants", *arguments])
        return code, *capsys.readouterr()

    return command


@pytest.fixture
def two(store, artifact):
    store.create("ann", artifact("one"), quality={"loss": 1.23456, "rows": 20})
    store.update("ann", artifact("two"), quality={"loss": 0.5, "rows": 20}, safety={"asr": 0.02})
    store.create("bob", artifact("three"))
    return store


def test_list_and_show_say_what_was_measured_and_what_was_not(gym, two):
    code, told, _ = gym("list")
    head, ann, bob, total = told.splitlines()
    assert code == 0 and head.split() == ["USER", "VERSION", "KIND", "SIZE", "CREATED", "QUALITY", "SAFETY"]
    assert ann.startswith("ann  ") and "loss 0.5, rows 20" in ann and "asr 0.02" in ann
    assert bob.count("not evaluated") == 2 and "2 variants" in total
    assert all(re.search(r"\b[1-9][\d.]* (bytes|kB)\b", line) for line in (ann, bob, total))  # small, and never 0
    code, told, _ = gym("show", "ann")
    first, second = two.lineage("ann")
    assert code == 0 and second.id in told and f"after version 1, {first.id[:12]}" in told and "loss 1.235" in told


def test_json_has_all_of_it(gym, two):
    code, told, _ = gym("list", "--json")
    found = json.loads(told)
    assert code == 0 and [each["user"] for each in found["variants"]] == ["ann", "bob"] and not found["damaged"]
    assert found["variants"][1]["safety"] == "not evaluated" and found["variants"][1]["bytes"] == 7
    _, told, _ = gym("show", "ann", "--json")
    found = json.loads(told)
    assert found["parent"] == found["lineage"][0]["version"] and found["quality"] == {"loss": 0.5, "rows": 20}


def test_verify_names_the_damaged_file_and_fails(gym, two):
    assert gym("verify")[0] == 0 and "2 variants are sound" in gym("verify")[1]
    damaged = next(path for path in two.root.glob("files/??/*") if path.read_text() == "three")
    damaged.write_text("thrce")
    code, told, wrong = gym("verify")
    assert code == 1 and "1 variants are sound" in told
    assert str(damaged) in wrong and "`delta.safetensors` of `bob`" in wrong and len(wrong.splitlines()) <= 4
    code, told, _ = gym("verify", "--json")
    assert code == 1 and [each["where"] for each in json.loads(told)["damaged"]] == [str(damaged)]
    assert gym("verify", "ann")[0] == 0
    assert gym("verify", "nobody")[0] == 1


def test_verify_names_a_sound_file_under_the_evidence_of_another(gym, two):
    """As a record may say that was put together by hand: all hashes are right, and what was measured is another file."""
    before = two.get("bob")
    of_another = {**before.artifact["details"], "measured": {"delta.safetensors": two.get("ann").files[0].sha256}}
    forged = before.model_copy(
        update={"number": 2, "parent": before.id, "artifact": {**before.artifact, "details": of_another}}
    )
    with two.index.writing() as connection:
        two.index.add(connection, forged)
    code, told, wrong = gym("verify")
    assert code == 1 and "1 variants are sound" in told
    assert (
        "`bob`" in wrong
        and "`delta.safetensors` is not the file whose safety" in wrong
        and len(wrong.splitlines()) <= 4
    )


def test_remove_and_gc_make_room(gym, two):
    assert gym("remove", "nobody")[0] == 1 and gym("remove")[0] == 2
    assert "removed 1" in gym("remove", "bob")[1]
    assert [each.user for each in two.listing().variants] == ["ann"]
    left = two.root / "files" / "00" / ("0" * 62)
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"x" * 1_000_000)
    assert "removed 1 files, 1.0 MB" in gym("gc")[1] and not left.exists()
    assert json.loads(gym("gc", "--json")[1])["files"] == 0
    two.verify("ann")


def test_a_store_that_is_not_there_is_an_error_and_is_not_made(gym, two, tmp_path):
    code, _, wrong = gym("list", "--store", str(tmp_path / "nothing"))
    assert code == 1 and "there is no store of variants" in wrong and len(wrong.splitlines()) <= 4
    assert not (tmp_path / "nothing").exists()


def test_a_command_imports_no_tensor_library(two):
    command = [sys.executable, "-c", LOADED, "variants", "verify", "--store", str(two.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "2 variants are sound" in done.stdout and done.stderr.strip() == "[]"
