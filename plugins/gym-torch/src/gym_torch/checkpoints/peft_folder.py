"""A folder that peft wrote elsewhere, as an artifact: which of Gym's adapters its options are, and over which model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from gym_core import Artifact, GymError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  #: what peft puts before the names of a model's modules
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
    saved = list(told.get("modules_to_save") or ())
    options: dict[str, Any] = {"rank": told["r"], "alpha": told["lora_alpha"], "target_modules": _layers(path, saved)}
    if saved:
        options["modules_to_save"] = saved
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


def _layers(path: Path, saved: Sequence[str]) -> list[str]:
    """Return the layers that have a low-rank update, by the names of its weights. `saved` are modules saved as a whole."""
    if not (path / WEIGHTS).is_file():
        why = f"there is no {WEIGHTS}"
        raise GymError(
            why, where=str(path), fix="save it again with peft: `save_pretrained(..., safe_serialization=True)`"
        )
    try:
        with safe_open(path / WEIGHTS, "pt") as weights:
            names = list(weights.keys())
    except SafetensorError as error:
        raise GymError(f"it is damaged: {error}", where=str(path / WEIGHTS)) from None
    found = {
        name.removeprefix(PREFIX).partition(f".{half}")[0]
        for name in names
        for half in ("lora_A", "lora_embedding_A")
        if f".{half}" in name
    }
    own = [name for name in names if ".lora_" not in name and not any(f"{module}." in name for module in saved)]
    if own:  # peft adds embeddings that were resized, or have a low-rank update
        raise GymError(
            f"it holds weights of the model beside the adapter: {own[0].removeprefix(PREFIX)}",
            where=str(path / WEIGHTS),
            fix="merge it with peft (`merge_and_unload`); if they are the base's own, save with `save_embedding_layers=False`",
        )
    if not found:
        raise GymError("no weight in it is one of a LoRA", where=str(path / WEIGHTS))
    return sorted(found)
