"""Sections of the second version that name a plugin of theirs: what each is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_core.dialect import mapping_of
from gym_llamafactory.keys.processes import scaling, zero
from gym_llamafactory.v1 import keys
from gym_llamafactory.v1.first_version import FirstVersionKeys

Options = Mapping[str, tuple[str, Any]]


def take(sections: dict[str, Any], flat: dict[str, Any], told: FirstVersionKeys) -> None:
    """Tell the sections of a file in keys of the first version, or in sections of a recipe."""
    adapter = _named(flat, "peft_config", told)
    kind = adapter.pop("name", "full")
    if kind in ("lora", "freeze"):
        _fill("peft_config", adapter, keys.LORA if kind == "lora" else keys.FREEZE, told)
    elif kind != "full":
        told.problem("peft_config.name", f"there is no `{kind}`", "one of: lora, freeze; or leave the section out")
    if "adapter" not in sections:
        told.put("peft_config", kind if kind in ("lora", "freeze") else "full", "finetuning_type")
    quantizer = _named(flat, "quant_config", told)
    if quantizer and quantizer.pop("name") not in ("bnb", "auto"):
        told.problem("quant_config.name", "is not bnb", "set it to bnb")
    elif quantizer:
        _fill("quant_config", quantizer, keys.QUANTIZATION, told)
    _optimizer(sections, flat, told)
    _processes(sections, flat, told)
    kernels = _named(flat, "kernel_config", told)
    named = kernels.get("name", "auto")
    if named == "liger_kernel":
        told.put("kernel_config", True, "enable_liger_kernel")
    elif named != "auto":
        told.problem("kernel_config.name", "names kernels of packages that are not used here", "set it to auto")


def _optimizer(sections: dict[str, Any], flat: dict[str, Any], told: FirstVersionKeys) -> None:
    chosen = _named(flat, "optim_config", told)
    if not chosen or "optimizer" in sections:
        return
    if chosen.pop("name") != "muon":
        told.problem("optim_config.name", "is not muon", "set it to muon, or leave the section out for AdamW")
        return
    chosen.pop("lr", None)  # `learning_rate` counts
    first, second = chosen.pop("adamw_betas", (0.9, 0.95))
    section = mapping_of(sections, "optimizer")
    section |= {"name": "muon", "beta1": first, "beta2": second}
    for key, (option, usual) in keys.MUON.items():
        section[option] = chosen.pop(key, usual)
    if chosen.pop("ns_steps", 5) != 5:
        told.problem("optim_config.ns_steps", "is 5 here", "leave it out")
    for key in chosen:
        told.problem(f"optim_config.{key}", "is no option of muon", "leave it out")


def _processes(sections: dict[str, Any], flat: dict[str, Any], told: FirstVersionKeys) -> None:
    spread, sharing = _named(flat, "dist_config", told), flat.pop("cp_size", None)
    name = spread.pop("name", "")
    if "distributed" in sections:
        return
    if sharing not in (None, 1):
        sections["distributed"] = {"context_parallel_size": sharing}
    if not name:
        return
    if name == "deepspeed":
        try:
            file = spread.pop("config_file", None) or {}
            scaling(file)  # which says nothing without a key that is not there
            mapping_of(sections, "distributed")["name"] = zero(file)
        except ValueError as error:
            told.problem("dist_config.config_file", str(error))
    elif name == "fsdp2":
        mapping_of(sections, "distributed")["name"] = "fsdp"
    else:
        why = "spreads experts and layers in a way that is not here"
        told.problem("dist_config.name", f"`{name}` {why}", "set it to fsdp2, or leave the section out")
        return
    for key in [key for key, value in spread.items() if value is not None]:
        told.problem(f"dist_config.{key}", "is not an option here", "leave it out")


def _named(flat: dict[str, Any], key: str, told: FirstVersionKeys) -> dict[str, Any]:
    """Take a section that names a plugin; empty where there is none."""
    given = flat.pop(key, None)
    if given is None:
        return {}
    if isinstance(given, Mapping) and "name" in given:
        return dict(given)
    told.problem(key, "does not say which one: the key `name` is missing")
    return {}


def _fill(section: str, given: Mapping[str, Any], known: Options, told: FirstVersionKeys) -> None:
    for key, (name, usual) in known.items():
        value = given.get(key, usual)
        if name and value is not None:
            told.put(section, value, name)
    for key in given.keys() - known.keys():
        told.problem(f"{section}.{key}", "is no option of it", f"known: {', '.join(known)}")
