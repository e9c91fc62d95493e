"""In which precision the files of a model hold each weight: most have one for all, some keep a few weights in fp32.

transformers loads all of them in the one that `config.json` says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from gym_core import Artifact
from gym_torch.model_files import stored_tensor, weight_files

CODES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class InFile(NamedTuple):
    """Where a weight lies in the files of a model."""

    name: str  #: that the files call it
    dtype: torch.dtype


def stored_dtype(model: PreTrainedModel, artifact: Artifact | None = None) -> torch.dtype:
    """Return the precision of the files a model came from, which may be lower than the one it was loaded in.

    Of what a run made it is that of the model which was trained: a checkpoint holds it in fp32.
    """
    if artifact and artifact.details.get("dtype") in _DTYPES:
        return _DTYPES[artifact.details["dtype"]]
    file = Path(model.name_or_path) / "config.json"
    if not file.is_file():
        return model.dtype
    config = json.loads(file.read_text(encoding="utf-8"))
    name = config.get("dtype") or config.get("torch_dtype")
    return _DTYPES.get(name, model.dtype)


def stored_exceptions(
    model: PreTrainedModel, artifact: Artifact, base: Path, usual: torch.dtype
) -> dict[str, torch.dtype]:
    """Return the weights of an artifact over `base`, by their names in `model`, whose precision is not the `usual` one."""
    if "dtype" in artifact.details:
        return {name: _DTYPES[dtype] for name, dtype in artifact.details.get("dtypes", {}).items()}
    return {name: each.dtype for name, each in exceptions(model, base, usual).items()}


def named_dtype(dtype: torch.dtype) -> str:
    """Return the name that configurations give a precision, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def declare_dtype(path: Path, dtype: torch.dtype) -> None:
    """Write into `config.json` the precision that the weights beside it are stored in.

    `save_pretrained` declares that of the live model, whatever it was given to write.
    """
    file = path / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["dtype"] = named_dtype(dtype)
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def exceptions(model: PreTrainedModel, path: Path, usual: torch.dtype) -> dict[str, InFile]:
    """Return the weights, by their names in `model`, that the files at `path` hold in another precision than the `usual` one.

    None where no weight at all is held in that. Where files cut a weight up, all parts are to be alike.
    """
    held = _precisions(path)
    if usual not in held.values() or len({*held.values()}) < 2:
        return {}
    found: dict[str, InFile] = {}
    for name, weight in model.state_dict().items():
        parts = [name] if name in held else [*revert_weight_conversion(model, {name: weight.to("meta")})]
        kinds = {held[part] for part in parts if part in held}
        if len(kinds) == 1 and (dtype := kinds.pop()) != usual:
            found[name] = InFile(parts[0], dtype)
    ties: Mapping[str, str] = model.get_expanded_tied_weights_keys(all_submodels=True) or {}
    return found | {name: found[other] for name, other in ties.items() if other in found}


def restore(model: PreTrainedModel, path: Path) -> None:
    """Put back the weights that files hold in a higher precision than that which they were loaded in."""
    weights = dict(model.state_dict(keep_vars=True))
    for name, (own, dtype) in exceptions(model, path, model.dtype).items():
        weight: Tensor = weights[name]
        if dtype.itemsize > weight.dtype.itemsize and weight.is_floating_point():
            whole = stored_tensor(path, own)
            weight.data = whole if whole.shape == weight.shape else weight.data.to(dtype)


def _precisions(path: Path) -> dict[str, torch.dtype]:
    """Return the precision of each floating-point weight by its name in the files."""
    found: dict[str, torch.dtype] = {}
    for file in weight_files(path):
        with safe_open(file, "pt") as weights:
            told = {name: weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118 - no mapping
        found |= {name: CODES[code] for name, code in told.items() if code in CODES}
    return found
