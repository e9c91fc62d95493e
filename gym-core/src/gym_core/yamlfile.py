"""Reads YAML files as plain data with the line of every key, within limits against malicious files.

Scalars are those of YAML 1.2: `no`, `on` and `2026-01-01` are text, `1e-5` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gym_core.errors import Problem, RecipeError

MAX_BYTES = 2**20
MAX_DEPTH = 64
MAX_SIZE = 20_000  #: nodes after aliases are expanded; 128 characters of text, or items, count as one more

KeyPath = tuple[str | int, ...]
_Pairs = dict[str, tuple[yaml.Node, yaml.Node]]


class Document(NamedTuple):
    """The data of a file; `marks` maps a key path to its `file:line`."""

    data: Any
    marks: dict[KeyPath, str]


_TAG = "tag:yaml.org,2002:"
# The core schema of YAML 1.2. Digits are bounded because Python refuses to read integers of more than 4300.
_INT = "[-+]?[0-9]{1,400}|0o[0-7]{1,400}|0x[0-9a-fA-F]{1,400}"
_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
_SCALARS: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    _TAG + name: (re.compile(rf"(?:{pattern})\Z", re.DOTALL), read)
    for name, pattern, read in (
        ("null", "~|null|Null|NULL|", lambda text: None),
        ("bool", "(?i:true|false)", lambda text: text.lower() == "true"),
        ("int", _INT, lambda text: int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))),
        ("float", _FLOAT, lambda text: float(re.sub(r"\.(?=[a-zA-Z])", "", text))),
        ("merge", "<<", str),  # as a value it is text; as a key it merges
        ("str", ".*", str),
    )
}
#: For a loader or a dumper of PyYAML. The key None: tried whatever the first character is. What fits none of them is text.
RESOLVERS = {None: [(tag, pattern) for tag, (pattern, _) in _SCALARS.items()][:-1]}
_HINTS = {
    "mapping values are not allowed": "quote a value that holds `: `, or check the indentation of this line",
    "could not find expected ':'": "write each line as `key: value`",
    "block end": "align the keys of one section in the same column",
    "'\\t'": "indent with spaces; YAML does not allow tabs there",
    "cannot start any token": "put the value in quotes",
    "expected ',' or": "close the bracket, or put a comma between the items",
    "quoted scalar": "close the quote",
    "undefined alias": "define the anchor (`&name`) before it is used, or quote a value that starts with `*`",
    "single document": "keep one recipe in a file; remove the line `---`",
}


class _Loader(yaml.SafeLoader):
    """The loader of PyYAML in Python, not in C, so that depth and size are limited while it reads."""

    yaml_implicit_resolvers = RESOLVERS
    depth = nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth, self.nodes = self.depth + 1, self.nodes + 1
        if self.depth > MAX_DEPTH or self.nodes > MAX_SIZE:
            deep = f"nests deeper than {MAX_DEPTH} levels" if self.depth > MAX_DEPTH else ""
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=deep or "holds too many values", problem_mark=mark)
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and not node.value.isascii():
            # JSON writes an emoji as two escapes, which only together are a character.
            node.value = node.value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        self.depth -= 1
        return node


def read_yaml(path: Path) -> Document:
    """Read a file that holds one mapping. Raises RecipeError with every problem and its line."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise RecipeError(f"is larger than {MAX_BYTES >> 20} MB", where=str(path), fix="is it the recipe?")
        text = raw.decode("utf-8-sig")
    except OSError as error:
        if address := re.match("(https?):/+(.+)", path.as_posix()):  # a Path has lost a slash of it
            where = f"{address[1]}://{address[2]}"
            raise RecipeError("is no file", where=where, fix="download it first, and name the file") from None
        raise RecipeError(f"cannot be read: {error.strerror}", where=str(path), fix="check the path") from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RecipeError("is not UTF-8 text", where=f"{path}:{line}", fix="save it as UTF-8") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Document:
    """Read text that holds one mapping; `source` names it in marks and problems. Raises RecipeError."""
    document = _parse(text, source)
    if not isinstance(document.data, dict):
        what = "is empty" if document.data is None else f"holds a {type(document.data).__name__}, not keys and values"
        fix = "write `key: value` lines, such as `algorithm: sft`"
        raise RecipeError(what, where=document.marks[()], fix=fix)
    return document


def parse_scalar(text: str) -> Any:
    """Read the value of a `key=value` override by the rules of a file; `[1, 2]` and `{a: 1}` are allowed."""
    text = text.strip()
    if text[:1] in ("[", "{", '"', "'"):
        return _parse(text, "command line").data
    return next(read(text) for pattern, read in _SCALARS.values() if pattern.match(text))


def _parse(text: str, source: str) -> Document:
    try:
        node = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = ", ".join(part for part in (error.context, error.problem) if part).splitlines()[0][:200]
        fix = next((fix for hint, fix in _HINTS.items() if hint in why), "")
        raise RecipeError(why, where=f"{source}:{mark.line + 1}" if mark else source, fix=fix) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise RecipeError("holds a control character", where=f"{source}:{line}", fix="remove it") from None
    reader = _Reader(source)
    data = reader.value(node, ()) if node else None
    if reader.problems:
        raise RecipeError(reader.problems)
    return Document(data, {(): f"{source}:1"} | reader.marks)


class _Reader:
    """Converts composed nodes to plain data, and collects marks and problems."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.marks: dict[KeyPath, str] = {}
        self.problems: list[Problem] = []
        self.size = 0
        self.open: list[yaml.Node] = []  # the nodes around the current one

    def at(self, node: yaml.Node) -> str:
        return f"{self.source}:{node.start_mark.line + 1}"

    def note(self, node: yaml.Node, why: str, fix: str) -> None:
        problem = Problem(why, self.at(node), fix=fix)
        if problem not in self.problems:  # an alias may lead here more than once
            self.problems.append(problem)

    def enter(self, node: yaml.Node) -> None:
        """Count a node: aliases may nest it in itself, or multiply it."""
        self.size += 1 + len(node.value) // 128
        if node in self.open or len(self.open) > MAX_DEPTH or self.size > MAX_SIZE:
            why = "an alias stands inside its own anchor" if node in self.open else "its aliases expand without bound"
            raise RecipeError([*self.problems, Problem(why, self.at(node), fix="write the values out")])
        self.open.append(node)

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.marks.setdefault(path, self.at(node))
        self.enter(node)
        result: Any = None
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            pattern, read = _SCALARS[node.tag]
            if pattern.match(node.value):
                result = read(node.value)
            else:
                self.note(node, f"`{node.value[:60]}` is no {node.tag.removeprefix(_TAG)}", "remove the tag")
        elif node.tag != _TAG + ("seq" if isinstance(node, yaml.SequenceNode) else "map"):
            tag = node.tag.replace(_TAG, "!!")[:80]
            self.note(node, f"the tag `{tag}` is not allowed: a recipe holds plain values", "remove the tag")
        elif isinstance(node, yaml.SequenceNode):
            result = [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        else:
            pairs = self.pairs(node)
            self.marks |= {(*path, name): self.at(key) for name, (key, _) in pairs.items()}
            result = {name: self.value(value, (*path, name)) for name, (_, value) in pairs.items()}
        self.open.pop()
        return result

    def pairs(self, node: yaml.Node) -> _Pairs:
        """Return the key and value nodes of a mapping by name; its own keys take precedence over merged ones."""
        own: _Pairs = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag not in (_TAG + "str", _TAG + "merge"):
                shown = f"`{key.value[:60]}`" if isinstance(key, yaml.ScalarNode) else "brackets"
                self.note(key, f"a key must be text, not {shown}", "put it in quotes")
            elif key.value in own:
                line = own[key.value][0].start_mark.line + 1
                self.note(key, f"`{key.value[:60]}` is given twice, first on line {line}", "keep one of them")
            else:
                own[key.value] = (key, value)
                if key.tag == _TAG + "merge":
                    merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        found = {name: pair for name, pair in own.items() if pair[0].tag == _TAG + "str"}
        for other in merged:
            if isinstance(other, yaml.MappingNode):
                self.enter(other)
                found = self.pairs(other) | found
                self.open.pop()
            else:
                self.note(other, "`<<` merges mappings alone", "give it an alias of a mapping, or a list of them")
        return found
