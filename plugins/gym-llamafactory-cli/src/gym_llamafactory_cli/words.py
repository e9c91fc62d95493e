"""The words of a LLaMA-Factory command line: a file with `key=value`, or all keys as flags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from gym_core.errors import RecipeError
from gym_core.yamlfile import parse_scalar

FILES = (".yaml", ".yml", ".json")


def keys_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the keys that a command line means: those of its file, if there is one, and what the words behind it change.

    Raises RecipeError for a word that is none of these.
    """
    if words and words[0].endswith(FILES):
        return read(Path(words[0])) | dict(_pair(word) for word in words[1:])
    keys: dict[str, Any] = {}
    values: list[Any] = []
    for word in words:
        if word.startswith("--"):
            key, equals, text = word.removeprefix("--").partition("=")
            values = [parse_scalar(text)] if equals else []
            keys[key.replace("-", "_")] = values
        elif keys:
            values.append(parse_scalar(word))
        else:
            fix = "name a YAML file, or write all keys as flags: --stage sft"
            raise RecipeError(f"`{word}` is no file and no flag", where="command line", fix=fix)
    return {key: True if not given else given[0] if len(given) == 1 else given for key, given in keys.items()}


def read(file: Path) -> dict[str, Any]:
    """Return the keys of a file. Raises RecipeError where it holds none."""
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecipeError(f"cannot be read: {error}", where=str(file), fix="name a YAML file") from None
    if not isinstance(found, dict):
        raise RecipeError("holds no keys", where=str(file), fix="name a file of LLaMA-Factory")
    return found


def _pair(word: str) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    if not equals or not key or key.startswith("-"):
        fix = "write it as key=value behind a file"
        raise RecipeError(f"`{word}` is not key=value", where="command line", fix=fix)
    return key, parse_scalar(text)
