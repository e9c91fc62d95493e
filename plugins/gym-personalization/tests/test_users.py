"""Names that no folder can bear, and rows that nothing can be learnt from, are refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gym_core import BusyError, DataError, RecipeError
from gym_personalization.users import checked_name, first_row, is_pair, rows_of, users_in
from gym_personalization.variants import STATE, Variants

ROW = {"messages": []}


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "/etc",
        "~x",
        "-x",
        "nul",
        "CON.txt",
        "x" * 10_000,
        "a b",
        "a\0",
        "é",
        "x.",
        7,
    ],
)
def test_what_is_no_name_is_refused(name: object, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        Variants(tmp_path).folder(name)  # type: ignore[arg-type]
    assert caught.value.problems[0].key == "user_id" and len(str(caught.value)) < 300
    assert not list(tmp_path.iterdir())


def test_usual_names_are_names() -> None:
    for name in ("alice", "user_123", "a@b.com", "7", "x" * 100, "550e8400-e29b-41d4-a716-446655440000"):
        assert checked_name(name) == name


def test_few_rows_are_refused(tmp_path: Path) -> None:
    empty, one, two = (tmp_path / f"{name}.jsonl" for name in ("empty", "one", "two"))
    empty.write_text("\n")
    one.write_text(json.dumps(ROW))
    two.write_text(json.dumps(ROW) + "\n\n" + json.dumps(ROW) + "\n")
    for data, why in (
        (empty, "no rows"),
        (one, "1 row,"),
        ([], "no rows"),
        ([ROW], "1 row,"),
        (tmp_path, "no file"),
        ("x", "no file"),
    ):
        with pytest.raises(DataError, match=why):
            rows_of("u", data)
    with pytest.raises(DataError, match="a str, and no mapping"):
        rows_of("u", ["hello", "you"])  # type: ignore[list-item]
    for name, held, why in (
        ("odd.jsonl", b"{\n{\n", "not JSON"),
        ("odd.jsonl", b"{}\n\xff\n", "not UTF-8"),
        ("odd.json", b"{", "JSON"),
    ):
        (tmp_path / name).write_bytes(held)
        with pytest.raises(DataError, match=why):
            rows_of("u", tmp_path / name)
    (tmp_path / "lines.jsonl").write_text(
        '{"chosen": "a\u2028b", "rejected": "c", "prompt": "d"}\n' * 2, encoding="utf-8"
    )
    assert is_pair(first_row(rows_of("u", tmp_path / "lines.jsonl"))), (
        "a line separator of Unicode ends no line of JSON"
    )
    assert rows_of("u", two) == two.resolve() and rows_of("u", [ROW, ROW]) == [ROW, ROW]
    assert not is_pair(first_row(two)) and is_pair(first_row([{"chosen": "a", "rejected": "b", "prompt": "c"}]))


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("lines.jsonl", "{0}\n{0}\n"),
        ("lines.json", "{0}\n{0}\n"),
        ("marked.jsonl", "\ufeff{0}\n{0}\n"),
        ("marked.json", "\ufeff[{0}, {0}]"),
        ("table.csv", "prompt,chosen,rejected\na,b,c\nd,e,f\n"),
    ],
)
def test_a_file_is_read_as_training_reads_it(name: str, form: str, tmp_path: Path) -> None:
    """A separator of lines in Unicode ends no row, and a byte order mark begins none."""
    pair = json.dumps({"prompt": "one\u2028two\x85", "chosen": "a", "rejected": "b"}, ensure_ascii=False)
    (tmp_path / name).write_text(form.format(pair), encoding="utf-8")
    assert is_pair(first_row(rows_of("u", tmp_path / name)))


def test_a_folder_of_users(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no file of a user"):
        users_in(tmp_path)
    with pytest.raises(RecipeError, match="no such folder"):
        users_in(tmp_path / "gone")
    for name in ("bob.jsonl", "alice.JSON", ".hidden.jsonl", "README.md"):
        (tmp_path / name).write_text("[]")
    assert list(users_in(tmp_path)) == ["alice", "bob"]
    (tmp_path / "bob.json").write_text("[]")
    with pytest.raises(DataError, match="two files"):
        users_in(tmp_path)
    (tmp_path / "bob.json").rename(tmp_path / "-.json")
    assert list(users_in(tmp_path)) == ["-", "alice", "bob"]  # whoever trains them names the first one


def test_rows_of_a_version_that_is_there_stay(tmp_path: Path) -> None:
    variants = Variants(tmp_path)
    path = variants.keep_rows("u", 1, [ROW])
    variants.keep_rows("u", 1, [ROW, ROW])  # nothing was trained on the others
    (variants.folder("u") / "1").mkdir()
    (variants.folder("u") / "1" / STATE).touch()
    with pytest.raises(BusyError, match="other rows"):
        variants.keep_rows("u", 1, [ROW])
    assert len(path.read_text().splitlines()) == 2
    assert variants.at("u", 1) is None and list(variants.users()) == ["u"]
    with pytest.raises(RecipeError, match="has no variant"):
        variants.served("u")
