"""What is not as it was when a run was carried out: versions, code, machine and options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gym_core import Recipe
from gym_core.record import environment

#: sections whose work begins after training, and those that change no number
_LEFT_OUT = ("quantization.",)


class Difference(NamedTuple):
    """One thing that was another then."""

    what: str
    then: Any
    here: Any

    def __str__(self) -> str:
        """Return it in one line."""
        return f"{self.what}: {_shown(self.then)} then, {_shown(self.here)} here"


def differences(record: Mapping[str, Any], recipe: Recipe, threads: int) -> list[Difference]:
    """Return all differences from what a run recorded; `threads` is how many it will be carried out with."""
    return list(_differences(record, recipe, threads))


def _differences(record: Mapping[str, Any], recipe: Recipe, threads: int) -> Iterator[Difference]:
    from gym_data.provenance import read_maker  # which need numpy and torch
    from gym_torch.loop.summary import machine

    then, here = record["environment"], environment()
    yield from _each({name: then.get(name) for name in ("python", "platform")}, here, "")
    used = {item["dist"] for item in record.get("components", ())}
    packages = {
        name: version for name, version in then["packages"].items() if not name.startswith("gym-") or name in used
    }
    yield from _each(packages, here["packages"], "")
    yield from _each(record.get("code", {}), _Codes(read_maker), "code of ")
    told = record.get("machine", {})
    yield from _each(told, machine() | {"threads": threads, "processes": told.get("processes")}, "")
    now = recipe.settings()
    old = {key: value for key, value in record["settings"].items() if not key.startswith(_LEFT_OUT)}
    for key in sorted({*old, *now}):
        if old.get(key) != now.get(key) and not key.startswith(_LEFT_OUT):
            yield Difference(key, old.get(key), now.get(key))


def _each(then: Mapping[str, Any], here: Any, prefix: str) -> Iterator[Difference]:
    for name, value in then.items():
        if value is not None and value != (now := here.get(name)):
            yield Difference(f"{prefix}{name}", value, now)


class _Codes:
    """Hashes of the code of packages, read when asked for."""

    def __init__(self, read: Any) -> None:
        self.read = read

    def get(self, package: str) -> str | None:
        found: str = self.read(package)["code"]
        return found or None


def _shown(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."
