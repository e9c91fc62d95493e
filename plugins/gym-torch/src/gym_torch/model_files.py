"""Checks the files of a model before it is loaded, and reads single weights of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from gym_core import GymError

PATH = "model.path"  #: the key of the recipe that names the model
INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
HEAD = "value_head.safetensors"  #: of a reward model, beside the weights of the rest
AGAIN = "fetch the model again: the file is damaged"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def _object(file: Path, key: str) -> dict[str, Any]:
    """Return the JSON object in a file of a model. Raises GymError where it holds none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise GymError(f"not JSON: {str(error)[:200]}", where=str(file), key=key, fix=AGAIN) from None
    if not isinstance(found, dict):
        raise GymError(f"expected an object, not {type(found).__name__}", where=str(file), key=key, fix=AGAIN)
    return found


def no_adapter(path: Path, key: str) -> None:
    """Raise GymError where the directory holds an adapter."""
    if (path / "adapter_config.json").exists():
        why = "holds an adapter, not a whole model"
        raise GymError(why, where=str(path), key=key, fix="merge it into its base first: gym export")


def check_weights(path: Path, key: str = PATH) -> None:
    """Raise GymError unless the directory holds a model in safetensors that needs no pickle; `key` is what names it."""
    no_adapter(path, key)
    if (path / INDEX).exists():
        named = _object(path / INDEX, key).get("weight_map")
        if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
            raise GymError("`weight_map` names no files", where=str(path / INDEX), key=key, fix=AGAIN)
        files = set(named.values())
        odd = sorted(name for name in files if not name.endswith(".safetensors") or Path(name).name != name)
        missing = sorted(name for name in files if not (path / name).exists())
        if odd or missing:
            why = f"{INDEX} names {odd[0]}" if odd else f"{missing[0]} is missing"
            fix = "get the weights again, in safetensors"
        elif WHOLE not in files and (path / WHOLE).exists():  # libraries differ in which of them they load
            why = f"{WHOLE} lies beside {INDEX}, which does not name it, so there are weights of two models"
            fix = "take away the file, or the index, whichever is the older"
        else:
            return
    elif (path / WHOLE).exists():
        return
    else:
        pickles = sorted(file.name for file in path.iterdir() if file.suffix in PICKLES) if path.is_dir() else []
        why = f"the weights in {pickles[0]} are a pickle, which can run any code" if pickles else "there are no weights"
        fix = "use a copy in safetensors (model.safetensors)"
    raise GymError(why, where=str(path), key=key, fix=fix)


def weight_files(path: Path, key: str = PATH) -> list[Path]:
    """Return the files that hold the weights in a directory, in order; everything that reads weights asks here.

    Of a model those that its index names, else `model.safetensors`, and a value head beside them: what an earlier save left there
    is of no model. Of another directory, such as that of an adapter, all files of safetensors. Raises GymError where a model
    lacks files that its index names.
    """
    if (path / INDEX).exists():
        check_weights(path, key)
        names = {*_object(path / INDEX, key)["weight_map"].values()}
    elif (path / WHOLE).exists():
        names = {WHOLE}
    else:
        return sorted(path.glob("*.safetensors"))
    return sorted(path / name for name in names) + ([path / HEAD] if (path / HEAD).exists() else [])


def check_code(path: Path, allowed: bool) -> None:
    """Raise GymError where there is no configuration, or one that leads to code of the model's own which is not allowed."""
    file = path / "config.json"
    if not file.exists():
        raise GymError(
            "there is no config.json",
            where=str(path),
            key="model.path",
            fix="name a model directory or a Hub id",
        )
    if _object(file, PATH).get("auto_map") and not allowed:
        raise GymError(
            "the model brings Python code of its own (auto_map in config.json)",
            where=str(path),
            key="model.trust_remote_code",
            fix="read that code; then set `trust_remote_code: true`, or use a model that transformers knows",
        )


def stored_tensor(path: Path, name: str) -> Tensor:
    """Return a weight from the files of a model, as it is there. Raises GymError where it has no such name there."""
    file = path / WHOLE
    if (path / INDEX).exists():
        file = path / _object(path / INDEX, PATH)["weight_map"].get(name, "")
    if file.is_file():
        with safe_open(file, "pt") as weights:
            if name in set(weights.keys()):
                found: Tensor = weights.get_tensor(name)
                return found
    raise GymError(
        f"{name} has another name in the files of the model", where=str(path), key="adapter", fix="set adapter: lora"
    )
