"""The fingerprint of a base model, computed from its weights, whatever files they are in."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from safetensors import safe_open

from gym_core import Artifact, GymError
from gym_core.files import cache_dir, write_atomically
from gym_data.location import lasting, locate
from gym_torch.checkpoints.weight_shards import CODES, digest
from gym_torch.model import fingerprint
from gym_torch.model.mapped_weights import release
from gym_torch.model_files import check_weights, weight_files

SAID = "base_fingerprint"  #: in the details of an adapter: that of the model that it was trained from


def base_fingerprint(path: Path) -> str:
    """Return the SHA-256 over the sorted (name, shape, number format, SHA-256 of the numbers) of the weights of a model.

    Weights are read in full once; what was found of a file is remembered in `$GYM_CACHE` by its contents. Raises GymError where
    there are no weights in safetensors.
    """
    check_weights(path)
    told = sorted(line for file in weight_files(path) for line in _weights(file))
    if not told:
        raise GymError("there are no weights", where=str(path))
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def check_base(artifact: Artifact, base: Path) -> None:
    """Raise GymError where an artifact says which weights it belongs to, and those of a base are others.

    A whole model belongs to none: what it says is where it comes from.
    """
    said = artifact.details.get(SAID)
    if artifact.kind == "model" or said is None or said == (found := base_fingerprint(base)):
        return
    raise GymError(
        f"it belongs to another base: fingerprint {said[:12]}, and that of {base} is {found[:12]}",
        where=str(artifact.path),
        key="base",
        fix="put back the weights that it was trained from",
    )


def based_on(artifact: Artifact, base: str | None) -> Artifact:
    """Return an artifact with its base where it is said to be now, such as a folder that was moved; as it is where that is None.

    Raises GymError where it is a whole model, what `locate` raises, and where the weights there are others.
    """
    if base is None:
        return artifact
    if artifact.kind == "model":
        raise GymError(
            "is a whole model, and has no base", where=str(artifact.path), key="base", fix="leave `base` out"
        )
    check_base(artifact, locate(base, key="base"))
    return replace(artifact, base=lasting(base))


def _weights(file: Path) -> list[list[object]]:
    memory = cache_dir() / "hashes" / f"weights-{fingerprint.of_file(file)[:32]}.json"
    if memory.is_file():
        kept: list[list[object]] = json.loads(memory.read_text(encoding="utf-8"))
        return kept
    found: list[list[object]] = []
    with safe_open(file, "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - it is no mapping
            tensor = weights.get_tensor(name)
            found.append([name, list(tensor.shape), CODES.get(tensor.dtype, str(tensor.dtype)), digest(tensor)])
            release(tensor)
    memory.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(memory, json.dumps(found))
    return found
