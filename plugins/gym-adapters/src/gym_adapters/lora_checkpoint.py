"""Adapters in a folder: what says how to open it, and a plain LoRA as peft keeps it.

Of that, each layer has a pair A, B, and what their product is multiplied by.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from peft.utils.other import get_pattern_key
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gym_core import Artifact, GymError
from gym_core.files import by_umask
from gym_data.location import artifact_at
from gym_torch.checkpoints.peft_folder import TWICE
from gym_torch.kinds import Adapter

KEY = "adapter.adapter_name_or_path"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ROUNDED = "loftq.safetensors"  #: what a base was rounded beside, in the folder of an adapter that corrects the rounding
PREFIX = "base_model.model."  #: what peft puts before the names of a model's modules
HALVES = frozenset({"lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"})
#: Options of peft under which the update is more than `scaling B A`, or not the same in all layers.
OTHER = (
    "use_dora", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern", "use_qalora", "target_parameters",
    "trainable_token_indices", "layer_replication", "alora_invocation_tokens", "arrow_config", "kasa_config", "use_bdlora",
)  # fmt: skip
PATTERNS = ("rank_pattern", "alpha_pattern")  #: those by which layers have ranks and scalings of their own
#: First values for which peft changes the base: what was trained fits no other, and peft changes it again as it loads.
CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")


def artifact(config: Adapter, path: Path, base: str) -> Artifact:
    """Return what a folder is that holds the adapter of `config` over `base`: it says what opens it again."""
    kind = type(config)
    details = {
        "adapter": f"{kind.__module__.partition('.')[0]}:{kind.__qualname__}",
        "options": config.model_dump(mode="json"),
    }
    return Artifact(path, "adapter", base=base, details=details)


@dataclass(frozen=True)
class LoraFile:
    """What a folder holds, or is to hold."""

    rank: int
    scaling: float
    pairs: dict[str, dict[str, Tensor]]  #: by name of the layer: `lora_A` `[rank, in]` and `lora_B` `[out, rank]`
    path: Path = Path()
    beside: dict[str, Tensor] = field(default_factory=dict)
    """What the file holds of the model itself, by its names there: biases and modules that trained, and the copies of embeddings
    and head that peft writes where one of them is adapted, or the vocabulary was resized."""
    saved: tuple[str, ...] = ()  #: names of the modules among these that trained whole
    scalings: Mapping[str, float] = field(default_factory=dict)  #: by name, of layers that have one of their own


def adapter_at(name: str | Path) -> Path:
    """Return the folder of an adapter, by a name that `artifact_at` knows. Raises GymError for a whole model."""
    found = artifact_at(str(name), key=KEY)
    if found.kind != "adapter":
        why = f"holds a {found.kind}, not an adapter"
        raise GymError(why, where=str(found.path), key=KEY, fix=f"begin with it: `model: {name}`, without this key")
    return found.path


def read_lora(path: Path, goes_on: bool = False, key: str = KEY, unlike: bool = False) -> LoraFile:
    """Read the LoRA in a folder, which `key` named. Raises GymError where it is none, or more than that; one that `goes_on` may
    have modules that trained whole, and where they may be `unlike`, layers may have ranks and scalings of their own.
    """
    if not (path / CONFIG).is_file() or not (path / WEIGHTS).is_file():
        raise GymError("there is no adapter of peft here", where=str(path), fix=f"name a folder with {WEIGHTS}")
    config = _config(path)
    taken = {"modules_to_save"} if goes_on else {*PATTERNS} if unlike else set()
    odd = [key for key in OTHER if config.get(key) and key not in taken]
    if config.get("peft_type") != "LORA" or odd:
        kind = f"has {odd[0]}" if odd else f"is {config.get('peft_type')}"
        raise GymError(
            f"only a plain LoRA can stand beside another, or be merged with it; this one {kind}",
            where=str(path),
            key=key,
            fix="merge it into the model first: gym export",
        )
    first = str(config.get("init_lora_weights")).lower()
    if first.startswith(CHANGING) or (path / ROUNDED).is_file():
        raise GymError(
            "this adapter belongs to a base that was changed for it, not to the model as it was",
            where=str(path),
            key=key,
            fix="merge it: gym export; one of peft, convert: save_pretrained(path_initial_model_for_weight_conversion=...)",
        )
    try:
        tensors = load_file(path / WEIGHTS)
    except SafetensorError as error:
        raise GymError(f"{WEIGHTS} is damaged: {error}", where=str(path), fix="get the adapter again") from None
    rank: int = 0 if config.get(PATTERNS[0]) else config["r"]
    scalings: dict[str, float] = {}
    pairs: dict[str, dict[str, Tensor]] = {}
    beside: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer, _, half = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        if half not in HALVES:
            if not TWICE & {*name.split(".")}:
                beside[name.removeprefix(PREFIX)] = tensor
            continue
        ranked = {"A": tensor.shape[:1], "B": tensor.shape[1:2]}.get(half[-1:])
        own, alpha = _of_layer(config, layer, path)
        if ranked is not None and ranked != (own,):
            why = f"{name} has the shape {list(tensor.shape)}, and {CONFIG} says `r` is {own}"
            raise GymError(why, where=str(path), fix="get both files of the adapter again")
        pairs.setdefault(layer, {})[half] = tensor.float()
        rank, scalings[layer] = max(rank, own), _scaling(config, own, alpha)
    scaling = _scaling(config, config["r"], config["lora_alpha"])
    unlike_it = {layer: each for layer, each in scalings.items() if each != scaling}
    return LoraFile(rank, scaling, pairs, path, beside, tuple(config.get("modules_to_save") or ()), unlike_it)


def _scaling(config: Mapping[str, Any], rank: int, alpha: float) -> float:
    return float(alpha / (rank**0.5 if config.get("use_rslora") else rank))


def _of_layer(config: Mapping[str, Any], layer: str, path: Path) -> tuple[int, float]:
    """Return the rank and the alpha of a layer. Raises GymError where a pattern says what is none."""
    found = []
    for pattern, plain in zip(PATTERNS, (config["r"], config["lora_alpha"]), strict=True):
        said = config.get(pattern) or {}
        try:
            found.append(said.get(get_pattern_key(said, layer), plain))
        except (AttributeError, TypeError, re.error):
            found.append(None)
    rank, alpha = found
    _check_scaling(rank, alpha, path, f"the rank of {layer}", "its alpha")
    return rank, alpha


def _check_scaling(rank: Any, alpha: Any, path: Path, of_rank: str, of_alpha: str) -> None:
    sound = isinstance(rank, int) and rank > 0 and isinstance(alpha, int | float) and isfinite(alpha)
    if not sound or bool in (type(rank), type(alpha)):
        why = f"{of_rank} is {rank!r} and {of_alpha} {alpha!r}, which scale nothing"
        raise GymError(why, where=str(path / CONFIG), fix="put back the numbers that it was trained with")


def check_beside(beside: Mapping[str, Tensor], model: nn.Module, path: Path) -> None:
    """Raise GymError where weights that the file of an adapter holds of the model itself are not those of the model.

    They are compared in the less exact of both precisions.
    """
    own = {_plain(name): weight for name, weight in model.named_parameters(remove_duplicate=False)}
    for name, saved in beside.items():
        weight = own.get(_plain(name))
        lower = min((each.dtype for each in (saved, weight) if each is not None), key=lambda dtype: dtype.itemsize)
        if weight is None or not torch.equal(saved.to(lower), weight.detach().cpu().to(lower)):
            raise GymError(
                f"it holds {_plain(name)} beside its low-rank updates, which is not that of the model",
                where=str(path / WEIGHTS),
                fix="merge it with peft (`merge_and_unload`), and name the folder of the merged model",
            )


def _plain(name: str) -> str:
    """Return what a weight is called where nothing is adapted."""
    return name.replace(".base_layer.", ".").replace(".original_module.", ".")


def _config(path: Path) -> dict[str, Any]:
    """Return the options of the LoRA in a folder. Raises GymError where they cannot be those of one."""
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise GymError(f"{CONFIG} cannot be read: {error}", where=str(path), fix="get the adapter again") from None
    if not isinstance(config, dict):
        raise GymError(f"{CONFIG} holds no options", where=str(path), fix="get the adapter again")
    if config.get("peft_type") == "LORA":  # of any other kind `read_lora` says which it is
        _check_scaling(config.get("r"), config.get("lora_alpha"), path, "`r`", "`lora_alpha`")
    return config


def concatenated(parts: Sequence[tuple[LoraFile, float]]) -> LoraFile:
    """Return one LoRA that does what several do together, each times a weight: of the sum of their ranks, scaled by 1."""
    shapes: dict[str, dict[str, Tensor]] = {}
    for part, _ in parts:
        shapes |= part.pairs
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, halves in shapes.items():
        pairs[name] = {half: _concatenated(parts, name, half, tensor) for half, tensor in halves.items()}
    return LoraFile(sum(part.rank for part, _ in parts), 1.0, pairs)


def _concatenated(parts: Sequence[tuple[LoraFile, float]], name: str, half: str, like: Tensor) -> Tensor:
    """Lay the A of a layer one below another, or the B side by side; a part that leaves the layer alone has zeros."""
    first = half.endswith("A")
    pieces = []
    for part, weight in parts:
        nothing = like.new_zeros((part.rank, like.shape[1]) if first else (like.shape[0], part.rank))
        piece = part.pairs.get(name, {}).get(half, nothing)
        pieces.append(piece if first else weight * part.scaling * piece)
    return torch.cat(pieces, dim=0 if first else 1)


def write_lora(path: Path, base: str, lora: LoraFile) -> Path:
    """Write a LoRA for the model `base` as `peft.PeftModel.from_pretrained` loads it, and return the folder."""
    path.mkdir(parents=True, exist_ok=True)
    options = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.scaling * lora.rank,  # type: ignore[arg-type] # peft only divides by it
        target_modules=sorted(lora.pairs),
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    options.target_modules = sorted(lora.pairs)  # peft made a set of it, whose order differs between processes
    options.save_pretrained(str(path))
    tensors = {
        f"{PREFIX}{name}.{half}" + ("" if "embedding" in half else ".weight"): tensor.contiguous()
        for name, halves in lora.pairs.items()
        for half, tensor in halves.items()
    }
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    by_umask(path / WEIGHTS)
    return path
