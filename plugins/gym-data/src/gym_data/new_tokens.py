"""Tokens that a model gets beside its own: a directory whose tokenizer has them, with everything else as it was."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_core import DataError, cache_dir
from gym_core.files import replacing
from gym_data.location import locate
from gym_data.provenance import maker

if TYPE_CHECKING:
    from gym_data.cache_eviction import CacheEntry

UNUSED = 30 * 24 * 3600.0  #: seconds, longer than runs take
MODEL = ("path", "revision", "add_tokens", "add_special_tokens")
"""Options of a model of a recipe that say where its tokenizer lies, and what it has beside."""


def folder_of(model: Mapping[str, Any], weights: bool = True, key: str = "") -> Path:
    """Return the directory of a model whose options of `MODEL` are given: its own, or one whose tokenizer has more tokens.

    Raises what `locate` and `with_tokens` raise.
    """
    folder = locate(model["path"], model.get("revision"), weights, key)
    return with_tokens(folder, model.get("add_tokens") or (), model.get("add_special_tokens") or ())


def with_tokens(folder: Path, plain: Sequence[str], special: Sequence[str]) -> Path:
    """Return a directory in the cache whose tokenizer knows these tokens too; the rest are links. `folder` if it knows them all.

    Raises DataError where transformers, which builds the tokenizer, is missing or cannot.
    """
    if not plain and not special:
        return folder
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.iterdir())]
    made_by = [maker("gym_data"), *(version(each) for each in ("transformers", "tokenizers") if find_spec(each))]
    said = [str(folder.resolve()), list(plain), list(special), files, made_by]
    made = root() / hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]
    if made.is_dir():
        with suppress(OSError):  # a cache that others fill can be read only
            os.utime(made)
        return made
    tokenizer = tokenizer_of(folder)
    if not add(tokenizer, plain, special):
        return folder
    made.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(made) as building:
            building.mkdir()
            tokenizer.save_pretrained(building)
            for file in folder.iterdir():
                if not (building / file.name).exists():
                    (building / file.name).symlink_to(file.resolve())
    except OSError:
        if not made.is_dir():  # else another process was faster
            raise
    with suppress(OSError):
        remove_unused()
    return made


def root() -> Path:
    """Return the folder in the cache that holds such directories."""
    return cache_dir() / "tokenizers"


def remove_unused() -> list[CacheEntry]:
    """Take away what no process asked for within `UNUSED`, and return it: one that is under way reads what it asked for."""
    from gym_data import token_cache  # which imports numpy; a recipe that adds no tokens needs none
    from gym_data.cache_eviction import kept

    gone = [held for held in kept(root()) if time.time() - held.used > UNUSED]
    for held in gone:
        token_cache.remove(root(), held.path.name)
    return gone


def tokenizer_of(folder: Path) -> Any:
    """Return the tokenizer that transformers builds. Raises DataError where it is missing or cannot."""
    if not find_spec("transformers"):
        raise DataError("adding tokens needs transformers", key="model.add_tokens", fix="pip install transformers")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever the files make of the class
        why = (str(error).strip().splitlines() or [""])[0][:200]
        raise DataError(f"transformers cannot build this tokenizer: {why}", where=str(folder)) from error


def add(tokenizer: Any, plain: Sequence[str], special: Sequence[str]) -> int:
    """Add tokens to a tokenizer of transformers, but those it has; return how many. Special ones are never part of a text."""
    return int(tokenizer.add_tokens(list(plain)) + tokenizer.add_tokens(list(special), special_tokens=True))
