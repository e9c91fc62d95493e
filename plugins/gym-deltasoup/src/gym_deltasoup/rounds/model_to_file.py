"""What is contributed from Python becomes one file of weights, whatever it was."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors.torch import save_file
from torch import Tensor

from gym_adapters.lora_checkpoint import read_lora
from gym_core import Artifact, GymError
from gym_core.files import expanded
from gym_deltasoup.rounds.checks import Refused
from gym_deltasoup.rounds.contribution_store import FILES, Details
from gym_deltasoup.sources.inputs import computes
from gym_deltasoup.sources.tensor_slices import Stored, tensors_of
from gym_manage.recorded import artifact_in
from gym_torch.checkpoints.weight_shards import lay_out, pieces


@runtime_checkable
class Saves(Protocol):
    """A model of transformers or peft, or what saves itself as they do."""

    def save_pretrained(self, path: str) -> Any:
        """Write a directory."""


@runtime_checkable
class Named(Protocol):
    """A model that remembers what it was loaded from."""

    name_or_path: str


Model = Artifact | Path | str | Saves | Mapping[str, Tensor]
"""A directory, what a run made, a model in memory, or its weights by name."""


@dataclass(frozen=True)
class Taken:
    """One file of weights, and what opens it."""

    file: Path
    details: Details
    base: str  #: the model that it was trained from; empty where it does not say
    computes: Mapping[str, Any] | None = None  #: see `gym_deltasoup.sources.inputs.computes`

    def check_computes(self, base: Path) -> None:
        """Raise Refused where it computes otherwise than the base: its weights alone would be merged, into something else."""
        mine = {} if self.computes is None else self.computes
        wanted = (computes(Artifact(base)) or {}) if self.details.kind == "model" and mine else {}
        differing = sorted(key for key in {*mine, *wanted} if mine.get(key) != wanted.get(key))
        if differing:
            why = f"it has another configuration than the base: `{differing[0]}` differs"
            raise Refused(
                why, key="model", fix="train from the base as it is, without options that change what it computes"
            )


def taken(model: Model, folder: Path) -> Taken:
    """Return a model as one file in a folder. Raises GymError for what is no model, or cannot be merged."""
    if isinstance(model, Mapping):
        save_file(_once(model), folder / FILES["model"])
        return Taken(folder / FILES["model"], Details(), "")
    if isinstance(model, Saves):
        place = folder / "saved"
        model.save_pretrained(str(place))
        found = _of(artifact_in(place, "model"), folder)
        loaded = model.name_or_path if isinstance(model, Named) else ""
        return found if found.base else replace(found, base=loaded)
    if isinstance(model, str | Path):
        return _of(artifact_in(expanded(model), "model"), folder)
    if isinstance(model, Artifact):
        return _of(model, folder)
    why = f"a {type(model).__name__} is no model"
    raise GymError(why, key="model", fix="give a directory, what a run made, a model of transformers, or its weights")


def _once(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights by name, of those that are one tensor the first, as in files. Raises GymError for what is no tensor."""
    found: dict[str, Tensor] = {}
    seen: set[tuple[object, ...]] = set()
    for name, each in weights.items():
        if not isinstance(each, Tensor):
            raise GymError(f"{name} is a {type(each).__name__}, and no tensor", key="model", fix="give `state_dict()`")
        same = (each.data_ptr(), each.shape, each.stride(), each.dtype)
        if same not in seen or not each.numel():
            seen.add(same)
            found[name] = each.detach().clone(memory_format=torch.contiguous_format)
    return found


def _of(artifact: Artifact, folder: Path) -> Taken:
    if artifact.kind not in FILES:
        raise GymError(f"artifacts of kind {artifact.kind} cannot be merged", where=str(artifact.path), key="model")
    base = str(artifact.base or artifact.details.get("base") or "")
    return Taken(_one_file(artifact, folder), details_of(artifact), base, computes(artifact))


def details_of(artifact: Artifact) -> Details:
    """Return what opens an artifact beside its weights."""
    if artifact.kind == "adapter":
        lora = read_lora(artifact.path, key="model")
        return Details(rank=lora.rank, alpha=lora.scaling * lora.rank)
    if artifact.kind == "delta":
        return Details(codec=artifact.details["delta"], options=artifact.details.get("options", {}))
    return Details()


def _one_file(artifact: Artifact, folder: Path) -> Path:
    """Write the weights of an artifact to one file in a folder, a piece at a time."""
    whole = artifact.path / FILES[artifact.kind]
    target = folder / "content.safetensors"
    if whole.is_file():
        with whole.open("rb") as source, target.open("wb") as into:
            shutil.copyfileobj(source, into, 1 << 22)
        return target
    if artifact.kind != "model":
        raise GymError(f"there is no {FILES[artifact.kind]} here", where=str(artifact.path), key="model")
    tensors: Mapping[str, Stored] = tensors_of(artifact.path)
    meta = {name: torch.empty(each.shape, dtype=each.dtype, device="meta") for name, each in tensors.items()}
    places = lay_out(meta, folder, max(1, sum(each.numbers * each.dtype.itemsize for each in tensors.values())))
    for name, each in tensors.items():
        with (folder / places[name].file).open("r+b") as into:
            into.seek(places[name].offset)
            for piece in pieces(each.read(0, each.numbers)):
                into.write(piece)
    (folder / next(iter(places.values())).file).replace(target)
    return target
