"""What `gym explain` prints is read back as it was, and so is JSON."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from gym_core.yamlfile import parse_yaml
from gym_manage.yaml_text import dump_yaml

#: Text that a reader of YAML, of 1.1 or 1.2, could take for something else.
TRAPS = (
    "no",
    "on",
    "1e-5",
    "0o17",
    "1:30",
    "2026-01-01",
    "<<",
    "=",
    "~",
    "",
    " ",
    "tRUE",
    "a: b",
    "# c",
    "\ufeff",
    "x\ny\n",
)
printable = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")
words = st.one_of(
    st.sampled_from(TRAPS), st.from_regex(r"[-+.0-9eExo_:]{1,6}", fullmatch=True), st.text(printable, max_size=12)
)
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), words)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(words, trees, max_size=4))
def test_what_is_written_is_read_back(data):
    again = parse_yaml(dump_yaml(data), "r.yaml").data
    assert again == data
    assert repr(again) == repr(data)  # 1, 1.0 and true are equal, but not the same


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(words, trees.filter(lambda tree: "inf" not in repr(tree)), max_size=4))
def test_json_is_read_as_yaml(data):
    assert parse_yaml(json.dumps(data), "r.yaml").data == data
