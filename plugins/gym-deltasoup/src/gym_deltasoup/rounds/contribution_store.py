"""What a contribution is on disk: one file of weights under its hash; all else is written here, never by a stranger."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt, model_validator
from safetensors.torch import load_file, save_file

from gym_adapters.lora_checkpoint import CONFIG, WEIGHTS
from gym_core import Artifact, GymError
from gym_core.component import Config
from gym_core.files import to_disk
from gym_deltasoup.ledger.ledger import Contribution
from gym_deltasoup.rounds.base import Base
from gym_deltasoup.sources.inputs import Input
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer

FOLDER = "contents"
FILES = {"model": "model.safetensors", "adapter": WEIGHTS, "delta": "delta.safetensors"}
MASKED = "masked"
Kind = Literal["model", "adapter", "delta", "masked"]
Plain = str | int | float | bool | None


class Details(Config):
    """What opens a contribution beside its weights."""

    rank: Annotated[int | None, Field(ge=1, le=4096)] = None
    """Rank of an adapter."""
    alpha: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """Alpha of an adapter: its product is scaled by `alpha / rank`."""
    codec: Annotated[str | None, Field(max_length=200)] = None
    """Quantizer of a delta, as `module:class` of an installed one."""
    options: Annotated[dict[str, Plain | list[Plain]] | None, Field(max_length=64)] = None
    """Options of that quantizer."""
    masked: Literal[True] | None = None
    """Whether the weights are numbers under masks, of which a sum alone says anything."""

    @model_validator(mode="after")
    def _of_one_kind(self) -> Details:
        if (self.rank is None) != (self.alpha is None) or (self.codec is None) != (self.options is None):
            raise ValueError("give `rank` and `alpha`, or `codec` and `options`, or none of them")
        if self.masked and (self.rank, self.codec) != (None, None):
            raise ValueError("what is masked is of no other kind")
        return self

    @property
    def kind(self) -> str:
        """Kind of the artifact."""
        if self.masked:
            return MASKED
        return "adapter" if self.rank is not None else "delta" if self.codec is not None else "model"

    def told(self) -> dict[str, Any]:
        """Return it as plain data."""
        return self.model_dump(mode="json", exclude_none=True)


class Limits(Config):
    """How large things may be."""

    contribution_bytes: PositiveInt = 1 << 34
    """Bytes of a contribution."""
    header_bytes: PositiveInt = 1 << 24
    """Bytes of the header of a file of weights."""
    free_bytes: int = 1 << 28
    """Bytes of the disk that are left free."""


class Contents:
    """Files by their hashes."""

    def __init__(self, folder: Path) -> None:
        """Keep them under a folder."""
        self.folder = folder / FOLDER

    def path(self, content: str) -> Path:
        """Return where a file lies."""
        return self.folder / content[:2] / f"{content}.safetensors"

    def take(self, file: Path, content: str) -> Path:
        """Move a file to its place, and wait until it is on the disk. A file that is there already stays."""
        place = self.path(content)
        if place.exists():
            file.unlink()
            return place
        place.parent.mkdir(parents=True, exist_ok=True)
        to_disk(file)
        file.replace(place)
        for folder in (place.parent, self.folder):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return place

    def laid_out(self, given: Contribution, base: Base, into: Path) -> Artifact:
        """Make a directory of a contribution that Gym opens: the file itself, and what belongs to it of the base.

        Raises GymError where the file is gone, or is not what was accepted.
        """
        file = self.path(given.content)
        if not file.is_file() or hashed(file) != given.content:
            why = f"the contribution of {given.member} is gone, or its bytes changed"
            raise GymError(why, where=str(file), fix="put back a copy of it")
        return lay_out(file, given.kind, given.details, base, into)


def lay_out(file: Path, kind: str, details: Mapping[str, Any], base: Base, into: Path) -> Artifact:
    """Make a directory of a file of weights: see `Contents.laid_out`."""
    into.mkdir(parents=True)
    (into / FILES[kind]).symlink_to(file.resolve())
    told: dict[str, Any] = {"base_fingerprint": base.fingerprint}
    if kind == "adapter":
        config = {"peft_type": "LORA", "r": details["rank"], "lora_alpha": details["alpha"]}
        (into / CONFIG).write_text(json.dumps({**config, "base_model_name_or_path": base.name}), encoding="utf-8")
    elif kind == "delta":
        told |= {"delta": details["codec"], "options": details["options"]}
    else:
        shutil.copyfile(base.path / "config.json", into / "config.json")
        copy_tokenizer(base.path, into)
        told["base"] = base.name
    made = Artifact(into, kind, base="" if kind == "model" else base.name, details=told)
    made.record()
    return made


def without_change(like: Input, names: Iterable[str], base: Base, folder: Path) -> list[Input]:
    """Return inputs that change nothing, of the kind and the layers of another, in the place of those that were refused.

    With differential privacy the number of inputs must not tell who was refused.
    """
    found = []
    for name in names:
        place = base.path
        if (like.path / WEIGHTS).is_file():
            place = folder / name
            place.mkdir(parents=True)
            for file in (CONFIG, "artifact.json"):
                shutil.copyfile(like.path / file, place / file)
            zeros = {key: torch.zeros_like(weight) for key, weight in load_file(like.path / WEIGHTS).items()}
            save_file(zeros, place / WEIGHTS, {"format": "pt"})
        found.append(Input(place, name))
    return found


def hashed(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()
