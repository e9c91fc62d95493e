"""Which rows a file of the second version means: a file of datasets, a file or folder of rows, or a dataset of the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FORMAT = "llamafactory_v1"
CONVERTERS = ("alpaca", "sharegpt", "pair")


def sources(named: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the sources of a recipe, and whether their rows hold two answers. Raises ValueError with what cannot be read."""
    path = Path(named)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ValueError(f"there is no file {named} here: name it from the folder where gym is started")
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(told, dict) or not all(isinstance(each, dict) and each.get("path") for each in told.values()):
            raise ValueError(f"{named} is no mapping of datasets, each with a `path`")
        read = [_source(f"{named}: {name}", entry) for name, entry in told.items()]
        return read, all(entry.get("converter") == "pair" for entry in told.values())
    return [_source(named, {"path": named, "source": "local" if path.exists() else "hf_hub"})], False


def _source(where: str, entry: dict[str, Any]) -> dict[str, Any]:
    entry = dict(entry)
    kind, path, converter = entry.pop("source", "hf_hub"), str(entry.pop("path")), entry.pop("converter", None)
    if converter not in (None, *CONVERTERS):
        raise ValueError(f"{where}: there is no converter `{converter}`; there are {', '.join(CONVERTERS)}")
    if kind not in ("hf_hub", "local"):
        raise ValueError(f"{where}: there is no source `{kind}`; there are hf_hub and local")
    made: dict[str, Any] = {"name": "file" if kind == "local" else "hub", "path": path}
    split, size = entry.pop("split", None), entry.pop("size", None)
    made |= {"split": split} if split and kind == "hf_hub" else {}
    made |= {"samples": size} if size else {}
    left = sorted(key for key, value in entry.items() if value not in (None, False))
    if left:
        raise ValueError(f"{where}: `{left[0]}` is not read: leave it out")
    return {**made, "read_as": {"name": FORMAT, **({"converter": converter} if converter else {})}}
