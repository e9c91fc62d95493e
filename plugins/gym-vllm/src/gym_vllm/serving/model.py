"""The model that a vLLM server answers with: where its files lie, its words, and what it is asked as."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym_core import Artifact, GymError
from gym_data.chat.template_hash import template_hash
from gym_data.tokenizer import Tokenizer
from gym_serve.contract import Limits, ModelSource, ServedModel
from gym_serve.local.opening import (
    UNBOUNDED,
    answers_of,
    artifact_in,
    artifact_of,
    check_template,
    options_of,
    own_tokenizer,
    tokenizer_of,
)
from gym_torch.checkpoints.base_model import base_of

ADAPTER = "adapter_config.json"  #: of a folder that vLLM reads as an adapter


@dataclass(frozen=True)
class AskedModel:
    """A base, and its adapters by the name of a tenant."""

    source: ModelSource
    path: Path  #: folder of the base
    words: Mapping[str | None, Tokenizer]  #: by tenant; None is what the plain name means
    adapters: dict[str | None, Path]  #: None is what the plain name means, where the source is an adapter itself
    context: int
    vocabulary: int
    ends: frozenset[int]  #: tokens that end a reply, whoever is asked
    created: int = field(default_factory=lambda: int(time.time()))

    def stops(self, tenant: str | None) -> frozenset[int]:
        """Return the tokens that end a reply of a tenant."""
        tokenizer = self.words[tenant]
        return self.ends | {token for token in (tokenizer.eos_id, *tokenizer.turn_ends) if token is not None}

    def listed(self, tenant: str | None = None, template_options: Mapping[str, Any] | None = None) -> ServedModel:
        """Return it as a front lists it, with the template of a tenant that is told some options."""
        template = self.words[tenant].templates.get("default")
        return ServedModel(
            self.source.name,
            "adapter" if None in self.adapters else "model",
            frozenset({"generate"}),
            self.created,
            self.context,
            tenants=bool(self.source.adapters),
            template_hash=template_hash(template) if template is not None else None,
            template_options=options_of(self.words[tenant]),
            answers=answers_of(self.words[tenant], json.dumps(template_options or {}, sort_keys=True)),
        )

    def name(self, tenant: str | None) -> str:
        """Return by which name the server knows a tenant, or the model itself."""
        return (
            self.source.name if tenant is None and None not in self.adapters else f"{self.source.name}@{tenant or ''}"
        )


def open_model(source: ModelSource, limits: Limits) -> AskedModel:
    """Find the files of a model. Raises GymError for what vLLM does not serve."""
    if source.tenants is not None:
        raise _refused(source, "tenants", "variants are served by the engine `local`", "leave `engine` out")
    if source.media is not None:
        raise _refused(source, "media", "images are read by the engine `local`", "leave `engine` out")
    artifact = artifact_of(source)
    folders: dict[str | None, Artifact] = {
        name: artifact_in(path, artifact.path) for name, path in source.adapters.items()
    }
    base = artifact.path
    if artifact.kind == "adapter":
        folders[None], base = artifact, base_of(artifact)
    elif artifact.kind != "model":
        raise _refused(source, "models", f"vLLM does not read a {artifact.kind}", "leave `engine` out")
    for name, each in folders.items():
        if not (each.path / ADAPTER).is_file():
            raise _refused(
                source, "adapters", f"the adapter `{name or source.name}` is none of peft", "merge it, and serve that"
            )
    own = artifact.path if (artifact.path / "tokenizer.json").is_file() else base
    tokenizer = tokenizer_of(own, source.template)
    check_template(artifact.details, tokenizer, source.name)
    words = {None: tokenizer} | {name: _own(source, name, each, tokenizer) for name, each in folders.items()}
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    config |= config.get("text_config", {})
    said = config.get("max_position_embeddings") or UNBOUNDED
    ends = _list(config.get("eos_token_id"))
    file = base / "generation_config.json"
    if file.is_file():
        ends += _list(json.loads(file.read_text(encoding="utf-8")).get("eos_token_id"))
    return AskedModel(
        source,
        base,
        words,
        {name: each.path for name, each in folders.items()},
        min(said, limits.max_context or said),
        int(config["vocab_size"]),
        frozenset(token for token in ends if token is not None),
    )


def _own(source: ModelSource, name: str | None, adapter: Artifact, usual: Tokenizer) -> Tokenizer:
    """Return the words of an adapter. Raises GymError where the template that it was trained with is not there."""
    try:
        return own_tokenizer(adapter, usual, source.template, name or source.name)
    except GymError as error:
        fix = "serve it alone, by its own path, or leave `engine` out"
        raise _refused(source, "adapters", error.problems[0].why, fix) from error


def _list(value: int | list[int] | None) -> list[int | None]:
    return list(value) if isinstance(value, list) else [value]


def _refused(source: ModelSource, key: str, why: str, fix: str) -> GymError:
    return GymError(why, where=source.path, key=key, fix=fix)
