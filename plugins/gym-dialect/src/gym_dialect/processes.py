"""How a run is spread over processes: files of DeepSpeed, and transformers' `fsdp`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_dialect.convert import note

_SHARDED = ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "true")
_WRAPPING = ("auto_wrap", "offload")  #: which layers are cut, and where they lie: no number changes


def zero(value: Any, beside: Mapping[str, str], refused: Mapping[str, str]) -> str:
    """Return the strategy that a DeepSpeed file means, or its content.

    `beside` has entries that say what keys beside it say, by those keys; `refused` those that are not here, by what to do
    instead. Raises ValueError where one is set.
    """
    told = content(value)
    for entry, key in beside.items():
        if told.get(entry, "auto") != "auto":
            raise ValueError(f"`{entry}: {told[entry]}` stands in it: write auto there, and set `{key}`")
    for entry, advice in refused.items():
        if told.get(entry):
            raise ValueError(f"`{entry}` stands in it, which is DeepSpeed's own: {advice}")
    stage = part(told, "zero_optimization").get("stage", 0)
    name = "DeepSpeed" if isinstance(value, Mapping) else str(value)
    return said(name, f"stage {stage}", "fsdp" if stage in (2, 3) else "ddp")


def sharding(value: Any) -> str:
    """Return how transformers' `fsdp` cuts weights up. Raises ValueError for a word that it does not know."""
    words = value if isinstance(value, list) else str(value).lower().replace(",", " ").split()
    words = [str(word).lower() for word in words]
    ways = [word for word in words if word not in _WRAPPING]
    if not ways:
        return ""
    unknown = [word for word in ways if word not in (*_SHARDED, "no_shard", "false")]
    if unknown or len(ways) > 1:
        raise ValueError(f"`{' '.join(unknown or ways)}` is not one of {', '.join((*_SHARDED[:-1], 'no_shard'))}")
    return said("fsdp", ways[0], "fsdp" if ways[0] in _SHARDED else "ddp")


def said(what: str, how: str, strategy: str) -> str:
    """Tell the user which strategy keys mean, and return it."""
    note(f"{what} ({how}) means `distributed: {strategy}`, which counts with several processes: gym train --nproc N")
    return strategy


def content(value: Any) -> Mapping[str, Any]:
    """Return what a DeepSpeed file holds, where it is not given itself. Raises ValueError for what is no such file."""
    return value if isinstance(value, Mapping) else _read(Path(str(value)))


def part(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of it; empty where there is none."""
    found = told.get(name)
    return found if isinstance(found, Mapping) else {}


def _read(file: Path) -> Mapping[str, Any]:
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        raise ValueError(f"there is no file {file} here: name it from the folder where gym is started") from None
    except ValueError:
        raise ValueError(f"{file} is no JSON") from None
    if not isinstance(told, dict):
        raise ValueError(f"{file} holds no mapping")
    return told
