"""Where rows come from: a file here, or a dataset of the Hub."""

from __future__ import annotations

import re
from typing import Any

from gym_axolotl.datasets.entry import Entry, Refused
from gym_core.files import expanded

KINDS = ("json", "csv", "parquet", "arrow", "text")  #: what `path` or `ds_type` may say of files
_REMOTE = re.compile(r"\w+://")


def located(entry: Entry) -> list[dict[str, Any]]:
    """Return the sources of an entry. Raises Refused for what is not read."""
    path = entry.take("path")
    kind, listed = entry.take("ds_type"), entry.names("data_files")
    split, subset, revision = entry.take("split"), entry.take("name"), entry.take("revision")
    if not isinstance(path, str) or not path:
        raise Refused("path", "names no rows", "name a file, a folder or a dataset of the Hub")
    if _REMOTE.match(path):
        raise Refused("path", "is not read from the network", "download it, and name the file")
    if path == "synthetic":
        raise Refused("path", "no rows are made up", "name a file, a folder or a dataset of the Hub")
    if kind is not None and kind not in KINDS:
        raise Refused("ds_type", f"there is no `{kind}`", f"one of: {', '.join(KINDS)}")
    place = expanded(path)
    here = place.exists() or path in KINDS or (kind is not None and not listed)
    if here:
        if str(split or "train") != "train":
            raise Refused(
                "split", "a file has no splits", "leave it out, and write those rows into a file of their own"
            )
        if subset is not None or revision is not None:
            key = "name" if subset is not None else "revision"
            raise Refused(key, "a file has none", "leave it out")
        names = [path] if not listed else [str(place / name) if place.is_dir() else str(name) for name in listed]
        return [{"name": "file", "path": name} for name in names]
    told: dict[str, Any] = {"subset": subset, "split": split, "revision": revision}
    told = {option: str(value) for option, value in told.items() if value is not None}
    told |= {"files": [str(name) for name in listed]} if listed else {}
    return [{"name": "hub" if told else "named", "path": path, **told}]
