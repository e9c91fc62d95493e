"""Reading the tokenizer files of a model directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from gym_core import DataError
from gym_data.tokenizer_classes import rebuilt

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TEMPLATE_FILE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"


@dataclass(frozen=True)
class Files:
    """What the files say."""

    tokenizer: dict[str, Any]  #: `tokenizer.json`
    named: dict[str, str]  #: tokens with a role: `eos_token` and so on, as chat templates see them
    templates: dict[str, str]  #: chat templates by name; `default` is the usual one
    stops: list[str]  #: tokens that the model stops at, by its generation config
    fingerprint: str  #: hash of what decides the tokens of a text; tokens with a role and chat templates do not


def read_tokenizer(path: Path) -> Files:
    """Read the tokenizer of a model directory. Raises DataError where `tokenizer.json` is missing or broken."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise DataError(
            "the model directory has no tokenizer.json",
            where=str(path),
            fix=f"write one: AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})",
        )
    try:
        return _read(path, _load(file))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        why = f"these are no tokenizer files: {type(error).__name__} {error}"
        raise DataError(why[:200], where=str(path), fix="fetch the model again") from error


def _read(path: Path, tokenizer: dict[str, Any]) -> Files:
    config = _load(path / "tokenizer_config.json") if (path / "tokenizer_config.json").is_file() else {}
    older = _load(path / "special_tokens_map.json") if (path / "special_tokens_map.json").is_file() else {}
    named = {name: text for name in NAMED if (text := _text(config.get(name) or older.get(name)))}
    tokenizer["added_tokens"] = _added(tokenizer.get("added_tokens", []), config.get("added_tokens_decoder", {}))
    by_class = rebuilt(path, config)
    if by_class is not None:
        tokenizer, roles = by_class
        named = {name: roles[name] for name in NAMED if name in roles}
    stops = _stops(path, tokenizer["added_tokens"])
    identity = json.dumps(tokenizer, sort_keys=True)
    return Files(tokenizer, named, _templates(path, config), stops, hashlib.sha256(identity.encode()).hexdigest())


def tokens_around(path: Path) -> tuple[list[int], list[int]]:
    """Return the tokens that a model's tokenizer puts before and behind a text when it is called, as models that embed are.

    Raises DataError where there is no tokenizer.
    """
    whole = read_tokenizer(path).tokenizer | {"truncation": None, "padding": None}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(whole))
    ids, bare = tokenizer.encode("a").ids, tokenizer.encode("a", add_special_tokens=False).ids
    start = next((at for at in range(len(ids)) if ids[at : at + len(bare)] == bare), 0)
    return ids[:start], ids[start + len(bare) :]


def renamed(tokenizer: tokenizers.Tokenizer, names: Mapping[str, str]) -> tokenizers.Tokenizer:
    """Return a copy in which some added tokens are written in another way; all ids stay."""
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = content["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(piece, piece): number for piece, number in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    copy = tokenizers.Tokenizer.from_str(json.dumps(content))
    for old, new in names.items():
        assert copy.token_to_id(new) == tokenizer.token_to_id(old), f"{old} lost its place"
    return copy


def _stops(path: Path, added: list[dict[str, Any]]) -> list[str]:
    """Return the added tokens that `generation_config.json` ends a text with."""
    file = path / "generation_config.json"
    ends = _load(file).get("eos_token_id") if file.is_file() else None
    ids = ends if isinstance(ends, list) else [ends]
    return [token["content"] for token in added if token["id"] in ids]


def _templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    written = config.get("chat_template")
    if isinstance(written, list):
        templates = {entry["name"]: entry["template"] for entry in written}
    else:
        templates = {"default": written} if written else {}
    file = path / TEMPLATE_FILE
    if file.is_file():
        templates["default"] = file.read_text(encoding="utf-8")
    for further in sorted((path / MORE_TEMPLATES).glob("*.jinja")):
        templates[further.stem] = further.read_text(encoding="utf-8")
    return templates


def _added(listed: list[dict[str, Any]], decoder: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the added tokens, with those that only tokenizer_config.json lists."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    known = {token["id"] for token in listed}
    further = [
        flags | dict(token) | {"id": int(number)} for number, token in decoder.items() if int(number) not in known
    ]
    for token in further:
        token.pop("__type", None)
    return sorted([*listed, *further], key=lambda token: int(token["id"]))


def _text(token: Any) -> str | None:
    return token["content"] if isinstance(token, dict) else token


def _load(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {str(error)[:200]}", where=str(path), fix="fetch the model again") from None
    if not isinstance(loaded, dict):
        raise DataError("expected an object", where=str(path), fix="fetch the model again")
    return loaded
