"""Finding plugins: reads the metadata of installed distributions and imports none of them.

It reads `entry_points.txt` itself: `importlib.metadata` alone costs more time to import than the whole scan takes. A test holds
the two to the same answer. What a component is, and how it is loaded, is not known here.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from gym_core.errors import Problem

PREFIX = "gym."
_HEADER = re.compile(r"^(Name|Version|Summary|Requires-Dist|Project-URL):\s*(.*?)\s*$", re.MULTILINE)


class Entry(NamedTuple):
    """One entry point: a name of a kind, where it leads and whose it is."""

    kind: str
    name: str
    value: str
    dist: str
    version: str
    metadata: str  #: the directory that holds the distribution's metadata
    paper: str  #: address of where its method was published, which is the project URL `NAME paper`; or empty

    @property
    def qualified(self) -> str:
        """Return `distribution/name`, which no other plugin can have."""
        return f"{self.dist}/{self.name}"


class Installed(NamedTuple):
    """All entry points of Gym's groups by kind, and the distributions whose metadata cannot be read."""

    entries: dict[str, list[Entry]]
    problems: list[Problem]


def canonical(name: str) -> str:
    """Normalise a distribution name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def entries(kind: str) -> list[Entry]:
    """Return the entry points of group `gym.<kind>`, sorted by name, then by distribution."""
    return installed().entries.get(kind, [])


@cache
def installed() -> Installed:
    """Scan `sys.path` once; of a distribution found twice the first counts, as for an import."""
    found: dict[str, list[Entry]] = {}
    problems: list[Problem] = []
    seen: set[str] = set()
    for directory in metadata_directories():
        folder = os.path.basename(directory)
        name, _, version = folder.rpartition(".")[0].partition("-")
        if canonical(name) in seen:
            continue
        seen.add(canonical(name))
        try:
            with open(os.path.join(directory, "entry_points.txt"), encoding="utf-8") as file:
                text = file.read()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (UnicodeDecodeError, OSError) as error:
            problems.append(_unreadable(folder, error))
            continue
        if f"[{PREFIX}" not in text:
            continue
        try:
            headers = read_headers(directory)
            dist, version = headers.get("Name", [name])[0], headers.get("Version", [version])[0]
            urls = dict(url.partition(", ")[::2] for url in headers.get("Project-URL", []) if url.isprintable())
        except (UnicodeDecodeError, OSError) as error:
            problems.append(_unreadable(folder, error))
            dist, urls = name, {}
        for kind, entry, value in _parse(text, dist, problems):
            paper = urls.get(f"{entry} paper", "")
            found.setdefault(kind, []).append(Entry(kind, entry, value, canonical(dist), version, directory, paper))
    for group in found.values():
        group.sort()
    return Installed(dict(sorted(found.items())), problems)


def read_headers(directory: str) -> dict[str, list[str]]:
    """Return the headers of a distribution that matter here, each with its values in order.

    Raises FileNotFoundError where the metadata are missing.
    """
    file = "PKG-INFO" if directory.endswith(".egg-info") else "METADATA"
    with open(os.path.join(directory, file), encoding="utf-8") as stream:
        text = stream.read().partition("\n\n")[0]
    headers: dict[str, list[str]] = {}
    for key, value in _HEADER.findall(text):
        headers.setdefault(key, []).append(value)
    return headers


def _search_path() -> list[str]:
    return list(dict.fromkeys(os.path.realpath(path or ".") for path in sys.path))


def metadata_directories() -> Iterator[str]:
    """Yield the metadata folder of every distribution, `name-version.dist-info`, in the order of `sys.path`."""
    for path in _search_path():
        try:
            names = sorted(os.listdir(path))
        except OSError:  # a zip file, or a path that is not there
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                yield os.path.join(path, name)


def _parse(text: str, dist: str, problems: list[Problem]) -> Iterator[tuple[str, str, str]]:
    kind = ""
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
            kind = group.removeprefix(PREFIX) if group.startswith(PREFIX) else ""
            continue
        if not kind:
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if equals and name and re.fullmatch(r"[\w.]+(:[\w.]+)?(\s*\[.*\])?", value):
            yield kind, name, value.partition("[")[0].strip()
        else:
            problems.append(
                Problem(
                    f"line {number} of entry_points.txt is not `name = module:object`",
                    where=dist,
                    fix=f"reinstall or uninstall {dist}",
                )
            )


def _unreadable(folder: str, error: Exception) -> Problem:
    reason = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
    return Problem(f"its metadata {reason} ({type(error).__name__})", where=folder, fix="reinstall or uninstall it")
