"""Finding plugins: reads the metadata of installed distributions and imports none of them.

It reads `entry_points.txt` itself, as `importlib.metadata` takes longer to import than the whole scan; a test compares the two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import NamedTuple

from gym_core.choices import Choices, read_choices
from gym_core.errors import Problem
from gym_core.metadata import Folder, canonical, metadata_folders, read_file, read_headers, unreadable

PREFIX = "gym."
TOLD = 3  #: most problems reported for one distribution
_GROUP = re.compile(r"[a-z][\w-]{0,60}", re.ASCII)
_NAME = re.compile(r"[\w.*+-]{1,100}", re.ASCII)
_VERSION = re.compile(r"[\w.+!-]{1,60}", re.ASCII)
_VALUE = re.compile(r"(?=.{1,300}\Z)([\w.]+(?::[\w.]+)?)\s*(?:\[.*\])?", re.ASCII)


class Entry(NamedTuple):
    """One entry point: kind, name, target and distribution."""

    kind: str
    name: str
    value: str
    dist: str
    version: str
    metadata: str  #: the directory that holds the distribution's metadata
    paper: str  #: address of where its method was published, which is the project URL `NAME paper`; or empty

    @property
    def qualified(self) -> str:
        """Return `distribution/name`, which is unique."""
        return f"{self.dist}/{self.name}"

    @property
    def title(self) -> str:
        """Return `distribution version (gym.kind: name)`, for error messages."""
        return f"{self.dist} {self.version} (gym.{self.kind}: {self.name})"


class Installed(NamedTuple):
    """All entry points of Gym's groups, and problems of metadata."""

    entries: dict[str, list[Entry]]  #: by kind, sorted by name, then by distribution
    named: dict[tuple[str, str], list[Entry]]  #: the same by kind and name
    disabled: list[Entry]
    problems: list[Problem]
    folders: dict[str, Folder]  #: every distribution, plugin or not
    choices: Choices


def entries(kind: str) -> list[Entry]:
    """Return the entry points of group `gym.<kind>`, sorted by name, then by distribution."""
    return installed().entries.get(kind, [])


def named(kind: str, name: str) -> list[Entry]:
    """Return the entry points of a bare name: one, none, or several, between which the user must choose."""
    found = installed().named.get((kind, name), [])
    origin = installed().choices.origin(kind, name)
    return [entry for entry in found if entry.dist == origin] if origin else found


def ambiguous() -> list[list[Entry]]:
    """Return the names that several distributions provide, without those that the user chose."""
    several = [key for key, group in installed().named.items() if len(group) > 1]
    return [group for key in sorted(several) if len(group := named(*key)) > 1]


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the most similar of the first thousand known names, or one that begins with this one, else ""; ignores case."""
    from difflib import get_close_matches  # listing does not pay for it

    asked = name.casefold().replace("-", "_")
    some = {each.casefold().replace("-", "_"): each for each in islice(known, 1000)}
    longer = [each for each in some if len(asked) > 2 and each.startswith(asked)]
    close = get_close_matches(asked, some, 10, cutoff) or longer
    return some[min(close, key=lambda each: (sorted(each) != sorted(asked), each not in longer))] if close else ""


@cache
def catalogue() -> dict[str, str]:
    """Return the package that provides each known component, by `kind/name`, or advice where none does. For messages only."""
    text = read_file(os.path.join(os.path.dirname(__file__), "catalogue.txt")).decode("utf-8")
    return dict(line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#"))


@cache
def installed() -> Installed:
    """Scan `sys.path` once."""
    found = Installed({}, {}, [], [], {}, read_choices())
    for folder in metadata_folders():
        problems: list[Problem] = []
        found.folders.setdefault(folder.name, folder)
        for entry in _entries(folder, problems):
            # A kind is no component of a run: those of other packages rest on it.
            if entry.kind != "kinds" and found.choices.disabled(entry.dist, entry.name):
                found.disabled.append(entry)
            else:
                found.entries.setdefault(entry.kind, []).append(entry)
                found.named.setdefault((entry.kind, entry.name), []).append(entry)
        found.problems.extend(problems[:TOLD])
        if len(problems) > TOLD:
            found.problems.append(Problem(f"{len(problems) - TOLD} more lines are wrong", problems[0].where))
    for group in (*found.entries.values(), *found.named.values(), found.disabled):
        group.sort()
    return found._replace(entries=dict(sorted(found.entries.items())))


def _entries(folder: Folder, problems: list[Problem]) -> list[Entry]:
    try:
        text = read_file(os.path.join(folder.path, "entry_points.txt")).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (UnicodeDecodeError, OSError) as error:
        problems.append(unreadable(folder, error))
        return []
    if f"[{PREFIX}" not in text:
        return []
    why = "" if folder.name else "its folder is named as no distribution can be"
    try:
        headers = read_headers(folder.path)
    except (UnicodeDecodeError, OSError) as error:
        problems.append(unreadable(folder, error))
        headers = {}
    names = headers.get("Name", [folder.name])
    if folder.name and {canonical(name) for name in names} != {folder.name}:
        why = f"its metadata name another distribution: {', '.join(names[:3])}"
    if why:
        problems.append(Problem(why, where=os.path.basename(folder.path), fix="reinstall or uninstall it"))
        return []
    version = next(filter(_VERSION.fullmatch, (headers.get("Version", [""])[0], folder.version)), "0")
    shown = (url for url in headers.get("Project-URL", []) if url.isprintable() and len(url) < 300)
    urls = dict(url.partition(", ")[::2] for url in shown)
    return [
        Entry(kind, name, value, folder.name, version, folder.path, urls.get(f"{name} paper", ""))
        for (kind, name), value in _parse(text, folder.name, problems).items()
    ]


def _parse(text: str, dist: str, problems: list[Problem]) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    twice, kind, fix = set[tuple[str, str]](), "", f"reinstall or uninstall {dist}"
    for number, line in enumerate(text.splitlines(), start=1):
        line, why = line.strip(), ""
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
            kind = group.removeprefix(PREFIX) if group.startswith(PREFIX) else ""
            why = "is no group" if kind and not _GROUP.fullmatch(kind) else ""
            kind = "" if why else kind
        elif kind:
            name, _, value = (part.strip() for part in line.partition("="))
            leads = _VALUE.fullmatch(value)
            if not leads or not _NAME.fullmatch(name):
                why = "is not `name = module:object`"
            elif found.setdefault((kind, name), leads[1]) != leads[1]:
                twice.add((kind, name))
                why = f"gives `{name}` a second meaning, so it has none"
        if why:
            problems.append(Problem(f"line {number} of entry_points.txt {why}", where=dist, fix=fix))
    return {key: value for key, value in found.items() if key not in twice}
