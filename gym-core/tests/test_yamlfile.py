"""YAML files: plain data with exact lines, and an answer of four lines for hostile files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_core import RecipeError
from gym_core.yamlfile import MAX_BYTES, MAX_DEPTH, parse_scalar, parse_yaml, read_yaml


def refuse(text: str) -> list[tuple[str, str, str]]:
    with pytest.raises(RecipeError) as caught:
        parse_yaml(text, "r.yaml")
    for problem in caught.value.problems:
        assert len(str(problem).splitlines()) <= 4
        assert problem.where.startswith("r.yaml:")
    return [(p.where.removeprefix("r.yaml:"), p.why, p.fix) for p in caught.value.problems]


def test_scalars_are_those_of_yaml_1_2():
    text = """
    text: [no, on, yes, off, 2026-01-01, 1:30, 12:30:45, 1_000, 0b11, "1", !!str 1, <<, =, 1e, .]
    numbers: [1e-5, 1E5, 0o17, 0x1F, 007, +12, -3, .5, 5., 6.02e+23, !!float 1]
    truth: [true, False, TRUE]
    nothing: [~, null, Null, ]
    empty:
    """
    data = parse_yaml(text, "r.yaml").data
    words = [
        "no",
        "on",
        "yes",
        "off",
        "2026-01-01",
        "1:30",
        "12:30:45",
        "1_000",
        "0b11",
        "1",
        "1",
        "<<",
        "=",
        "1e",
        ".",
    ]
    assert data["text"] == words
    assert data["numbers"] == [1e-5, 1e5, 15, 31, 7, 12, -3, 0.5, 5.0, 6.02e23, 1.0]
    assert [type(number) for number in data["numbers"]] == [float, float, *[int] * 5, *[float] * 4]
    assert data["truth"] == [True, False, True]
    assert data["nothing"] == [None, None, None]
    assert data["empty"] is None


def test_infinities():
    data = parse_yaml("a: [.inf, -.INF, .nan]", "r.yaml").data["a"]
    assert data[:2] == [float("inf"), float("-inf")]
    assert data[2] != data[2]


def test_marks_say_where_each_key_was_written():
    text = "# top\nmodel: tiny\ndata:\n  sources:\n    - a\n    - {path: b,\n       limit: 3}\n  cutoff: 8\n"
    assert parse_yaml(text, "r.yaml").marks == {
        (): "r.yaml:2",
        ("model",): "r.yaml:2",
        ("data",): "r.yaml:3",
        ("data", "sources"): "r.yaml:4",
        ("data", "sources", 0): "r.yaml:5",
        ("data", "sources", 1): "r.yaml:6",
        ("data", "sources", 1, "path"): "r.yaml:6",
        ("data", "sources", 1, "limit"): "r.yaml:7",
        ("data", "cutoff"): "r.yaml:8",
    }


def test_merge_keys_keep_the_line_where_a_value_was_written():
    text = "base: &b\n  x: 1\n  y: {z: 2}\none:\n  <<: *b\n  x: 3\ntwo:\n  <<: [{x: 9}, *b]\n"
    document = parse_yaml(text, "r.yaml")
    assert document.data["one"] == {"x": 3, "y": {"z": 2}}
    assert document.data["two"] == {"x": 9, "y": {"z": 2}}
    lines = {
        path: int(mark.rpartition(":")[2]) for path, mark in document.marks.items() if path[:1] in (("one",), ("two",))
    }
    assert lines == {
        ("one",): 4,
        ("one", "x"): 6,
        ("one", "y"): 3,
        ("one", "y", "z"): 3,
        ("two",): 7,
        ("two", "x"): 8,
        ("two", "y"): 3,
        ("two", "y", "z"): 3,
    }


def test_an_alias_is_a_copy():
    data = parse_yaml("a: &a [1]\nb: *a\n", "r.yaml").data
    data["a"].append(2)
    assert data["b"] == [1]


def test_duplicate_keys_are_all_reported_with_both_lines():
    found = refuse("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\na: 2\na: 3\n")
    assert sorted((line, why) for line, why, _ in found) == [
        ("5", "`c` is given twice, first on line 3"),
        ("6", "`a` is given twice, first on line 1"),
        ("7", "`a` is given twice, first on line 1"),
    ]


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system",
        "!!python/name:os.system",
        "!!python/object:object",
        "!thing",
        "!!binary",
        "!!set",
    ],
)
@pytest.mark.parametrize("value", ["x", "[x]", "{x: 1}"])
def test_tags_are_refused(tag, value):
    assert [(line, tag in why) for line, why, _ in refuse(f"a: 1\nb: {tag} {value}\n")] == [("2", True)]


def test_a_tag_as_key_and_a_tag_that_does_not_fit():
    assert "must be text" in refuse("!!python/name:os.system x: 1\n")[0][1]
    assert refuse("a: !!int x\n") == [("1", "`x` is no int", "remove the tag")]
    assert "not allowed" in refuse("a: !!str [x]\n")[0][1]


def test_different_problems_are_reported_together():
    assert [line for line, _, _ in refuse("a: 1\na: 2\nb: !!python/none x\n1: c\n? [d]\n: e\nf: {<<: g}\n")] == [
        "2",
        "4",
        "5",
        "3",
        "7",
    ]


def bomb(first: str, step: str, levels: int = 12) -> str:
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{i}: &a{i} {step % ', '.join([f'*a{i - 1}'] * 9)}" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        bomb("[lol]", "[%s]"),
        bomb("{k: v}", "{<<: [%s]}"),
        "a: &a " + "x" * 100_000 + "\nb: [" + "*a, " * 200 + "]",
        "a: &a " + "[" * 40 + "]" * 40 + "\nb: &b " + "[" * 40 + "*a" + "]" * 40,
        "a: &a [*a]",
        "a: &a {b: *a}",
        "a: &a {<<: *a}",
    ],
)
def test_alias_bombs_are_refused(text):
    assert "alias" in refuse(text)[-1][1]


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "a:\n"])
def test_nesting_is_bounded(opening):
    text = opening * 100_000 if opening != "a:\n" else "".join(" " * depth + opening for depth in range(200))
    assert refuse(text)[0][1] == f"nests deeper than {MAX_DEPTH} levels"


def test_many_small_values_are_refused():
    assert refuse("a: [" + "1," * 100_000 + "]")[0][1] == "holds too many values"


@pytest.mark.parametrize(
    ("text", "line", "why", "fix"),
    [
        ("a:\n\tb: 1\n", "2", "'\\t'", "spaces"),
        ("a: b: c\n", "1", "mapping values", "quote"),
        ("a: 1\nb: [1,\nc: 2\n", "4", "flow", "bracket"),
        ("a: 1\n b: 2\n", "2", "mapping values", "indentation"),
        ("a:\n  b: 1\n c: 2\n", "3", "block", "align"),
        ("a: 'x\n", "2", "end of stream", "close the quote"),
        ("a: *b\n", "1", "undefined alias", "anchor"),
        ("a: 1\n---\nb: 2\n", "2", "single document", "---"),
        ("a: @b\n", "1", "cannot start", "quotes"),
        ("a: 1\nb: \x07\n", "2", "control character", "remove"),
        ("", "1", "is empty", "key: value"),
        ("# nothing\n", "1", "is empty", "key: value"),
        ("\n- 1\n", "2", "holds a list", "key: value"),
        ("word\n", "1", "holds a str", "key: value"),
    ],
)
def test_a_wrong_file_gets_one_problem_with_its_line_and_a_remedy(text, line, why, fix):
    ((at, said, remedy),) = refuse(text)
    assert at == line
    assert why in said
    assert fix in remedy


def test_files(tmp_path: Path):
    path = tmp_path / "r.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: \xc3\xa9\r\nb: 1\r\n")
    document = read_yaml(path)
    assert document.data == {"a": "é", "b": 1}
    assert document.marks["b",] == f"{path}:2"
    for content, why, line in (
        (b"a: 1\nb: \xff\n", "UTF-8", ":2"),
        ("a: 1".encode("utf-16"), "UTF-8", ":1"),
        (b"\xc3\xa9" * MAX_BYTES, "larger", ""),
    ):
        path.write_bytes(content)
        with pytest.raises(RecipeError, match=why) as caught:
            read_yaml(path)
        assert caught.value.problems[0].where == f"{path}{line}"
    for missing in (tmp_path / "none.yaml", tmp_path, path / "x"):
        with pytest.raises(RecipeError, match="cannot be read"):
            read_yaml(missing)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("no", "no"),
        ("", None),
        (" 2 ", 2),
        ("true", True),
        ("a,b", "a,b"),
        ("a: b", "a: b"),
        ("# x", "# x"),
        ("*x", "*x"),
        ("!!python/name:os", "!!python/name:os"),
        ("'1'", "1"),
        ("[1, no]", [1, "no"]),
        ("{a: 1e-3}", {"a": 1e-3}),
    ],
)
def test_overrides_follow_the_same_rules(text, value):
    assert parse_scalar(text) == value


@pytest.mark.parametrize("text", ["[!!python/name:os.system x]", "[1", "{a: 1, a: 2}", "{{x}}"])
def test_overrides_are_as_strict(text):
    with pytest.raises(RecipeError) as caught:
        parse_scalar(text)
    assert all(problem.where == "command line:1" for problem in caught.value.problems)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from(list("ab01:-[]{},&*!<'\"#|>?%@\n\t ~é\x00")), max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        document = parse_yaml(text, "r.yaml")
    except RecipeError as error:
        assert all(len(str(problem).splitlines()) <= 4 for problem in error.problems)
    else:
        assert isinstance(document.data, dict)
