"""A folder that peft wrote elsewhere, as an artifact: which of Gym's adapters its options are, and over which model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from gym_core import Artifact, GymError
from gym_torch.model.vocabulary import resize, vocabulary_modules

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  #: what peft puts before the names of a model's modules
#: Parts of names under which peft writes a module that trained whole again, and what it stands for, of a resized vocabulary.
TWICE = frozenset({"modules_to_save", "original_module"})
#: Ends the name of a copy of what is under an update, which reading compares with the model's.
UNDER = ".base_layer.weight"
#: Options of peft that make of a LoRA another adapter, or one that is not the same in all layers; and `bias`, which is a word.
OTHER = (
    "lora_bias", "rank_pattern", "alpha_pattern", "use_qalora", "target_parameters", "trainable_token_indices",
    "layer_replication", "alora_invocation_tokens", "arrow_config", "kasa_config", "use_bdlora",
)  # fmt: skip
#: First values for which peft changes the base: what was trained belongs to no other.
CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")
MAKERS = {(False, False): "LoRA", (True, False): "DoRA", (False, True): "RsLoRA"}  #: by `use_dora` and `use_rslora`


def is_peft(path: Path) -> bool:
    """Whether a directory holds an adapter of peft that does not say which of Gym's made it."""
    return (path / CONFIG).is_file() and not (path / "artifact.json").is_file()


def peft_artifact(path: Path, base: str | None = None) -> Artifact:
    """Return what such a directory holds, over the model that it names or over `base`.

    Raises GymError where it is another kind of adapter than LoRA, DoRA or rank-stabilized LoRA, has options that Gym's have not,
    names no model, or has no weights in safetensors.
    """
    told = _config(path)
    odd = [key for key in OTHER if told.get(key)]
    odd += ["bias"] if told.get("bias", "none") != "none" else []
    first = str(told.get("init_lora_weights", "")).lower()
    odd += ["init_lora_weights"] if first.startswith(CHANGING) else []
    maker = MAKERS.get((bool(told.get("use_dora")), bool(told.get("use_rslora"))))
    if told.get("peft_type") != "LORA" or odd or maker is None:
        kind = f"`{odd[0]}`" if odd else f"`{told.get('peft_type')}`" if maker else "`use_dora` with `use_rslora`"
        fix = "merge it with peft (`merge_and_unload`), and name the folder of the merged model"
        raise GymError(f"an adapter of peft with {kind} is not read here", where=str(path / CONFIG), fix=fix)
    named = base or told.get("base_model_name_or_path")
    if not named:
        raise GymError(
            "it does not say which model it belongs to", where=str(path / CONFIG), key="base_model_name_or_path"
        )
    names = list(_shapes(path))
    whole = _whole(path, names, list(told.get("modules_to_save") or ()))
    options: dict[str, Any] = {"rank": told["r"], "alpha": told["lora_alpha"], "target_modules": _layers(path, names)}
    if whole:
        options["modules_to_save"] = whole
    details = {"adapter": f"gym_adapters:{maker}", "options": options}
    return Artifact(path, "adapter", base=str(named), details=details)


def _config(path: Path) -> Mapping[str, Any]:
    try:
        told = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        if isinstance(told, dict) and {"r", "lora_alpha"} <= told.keys():
            return told
    except (OSError, ValueError, RecursionError) as error:
        raise GymError(f"it cannot be read: {str(error)[:160]}", where=str(path / CONFIG)) from None
    kind = told.get("peft_type") if isinstance(told, dict) else None
    raise GymError(f"an adapter of peft of kind `{kind}` is not read here", where=str(path / CONFIG))


def fit_vocabulary(model: PreTrainedModel, path: Path) -> None:
    """Give a base the vocabulary of an adapter in a folder, which may hold embeddings and head with more rows, or with fewer.

    Raises GymError where it holds one of the two and not the other, which nobody has then.
    """
    shapes = _shapes(path) if (path / WEIGHTS).is_file() else {}
    held = {name: shapes.get(f"{PREFIX}{name}.weight") for name in vocabulary_modules(model)}
    own = model.get_input_embeddings().weight.shape[0]
    found = {shape[0] for shape in held.values() if shape} - {own}
    if not found:
        return
    if len({None if shape is None else shape[0] for shape in held.values()}) > 1:
        told = ", ".join(f"{name} {'none' if shape is None else f'{shape[0]:,}'}" for name, shape in held.items())
        raise GymError(
            f"its base has {own:,} tokens, and it holds rows for others in one place alone: {told}",
            where=str(path / WEIGHTS),
            fix=f"save it with `modules_to_save: {','.join(name.rpartition('.')[2] for name in held)}`, or merge it with peft",
        )
    resize(model, found.pop())


def _shapes(path: Path) -> dict[str, list[int]]:
    """Return the shapes of the weights in a folder, by name. Raises GymError where they are missing or damaged."""
    if not (path / WEIGHTS).is_file():
        why = f"there is no {WEIGHTS}"
        raise GymError(
            why, where=str(path), fix="save it again with peft: `save_pretrained(..., safe_serialization=True)`"
        )
    try:
        with safe_open(path / WEIGHTS, "pt") as weights:
            return {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118 - it is no mapping
    except SafetensorError as error:
        raise GymError(f"it is damaged: {error}", where=str(path / WEIGHTS)) from None


def _whole(path: Path, names: Sequence[str], saved: list[str]) -> list[str]:
    """Return the modules of which the file holds all: those that are `saved`, and what peft adds of a vocabulary it resized."""
    plain = (name.removeprefix(PREFIX) for name in names if ".lora_" not in name and not name.endswith(UNDER))
    own = [name for name in plain if not {*name.split(".")} & TWICE]
    found = {name.rpartition(".")[0] for name in own if not any(f"{module}." in name for module in saved)}
    if strange := sorted(name for name in found if not name or name.endswith(".base_layer")):
        raise GymError(
            f"it holds weights of the model beside the adapter: {strange[0]}",
            where=str(path / WEIGHTS),
            fix="merge it with peft (`merge_and_unload`), and name the folder of the merged model",
        )
    return saved + sorted(found)


def _layers(path: Path, names: Sequence[str]) -> list[str]:
    """Return the layers that have a low-rank update, by the names of its weights."""
    found = {
        name.removeprefix(PREFIX).partition(f".{half}")[0]
        for name in names
        for half in ("lora_A", "lora_embedding_A")
        if f".{half}" in name
    }
    if not found:
        raise GymError("no weight in it is one of a LoRA", where=str(path / WEIGHTS))
    return sorted(found)
