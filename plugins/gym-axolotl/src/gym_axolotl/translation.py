"""A file of axolotl, translated into the sections of a recipe by the installed tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_axolotl.datasets import taken
from gym_axolotl.stated import STATED
from gym_axolotl.table import KIND
from gym_axolotl.tracking import KEYS as TRACKED
from gym_axolotl.tracking import callbacks
from gym_core.dialect import parted
from gym_core.discovery import installed
from gym_core.errors import Problem
from gym_core.sections import SLOTS, Findings
from gym_dialect import Dialect, place, take_apart

TOP = {"output_dir": "output"}  #: keys that are a section by themselves
OUTPUT = "./model-out"  #: what `output_dir` means by being left out
HOLDING = (
    "bnb_config_kwargs",
    "lr_scheduler_kwargs",
    "model_config",
    "model_quantization_config_kwargs",
    "optim_args",
    "overrides_of_model_config",
    "peft",
    "special_tokens",
    "trl",
)
"""Keys that hold others; each is a key by itself: `trl.beta`."""
SHARED = ("adapter", "optimizer")
"""Keys that are sections of a recipe as well: a name that axolotl knows is one of its own, options make it a section."""
LORA = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear", "lora_modules_to_save")
DIALECT = Dialect(
    KIND, STATED, TOP, dict.fromkeys(LORA, "adapter"), frozenset({*HOLDING, *TRACKED, "chat_template_jinja"})
)


def translate(data: Mapping[str, Any], found: Findings) -> dict[str, Any]:
    """Return the sections that a file means. Notes every key that cannot be placed."""
    sections, flat = parted(data)
    for key in SHARED:
        _shared(key, sections, flat)
    if isinstance(later := sections.get("quantization"), Mapping) and not later.keys() & {
        SLOTS["quantization"].selector
    }:
        del sections["quantization"]
        why, fix = "is done after training", "leave it out, and run `gym quantize` on the model that is made"
        found.problems.append(Problem(why, found.where(("quantization",)), "quantization", fix))
    if isinstance(flat.get("tokens"), Mapping):  # older files have special tokens there
        flat["special_tokens"] = {**flat.pop("tokens"), **(flat.get("special_tokens") or {})}
    take_apart(HOLDING, flat, found)
    taken(sections, flat, found)
    watching = callbacks(flat, found)
    if "output" not in sections and flat.get("output_dir") is None:
        flat["output_dir"] = OUTPUT
    place(DIALECT, sections, flat, found)
    if watching:
        given = sections.get("callbacks") or []
        sections["callbacks"] = [*(given if isinstance(given, list) else [given]), *watching]
    return sections


def _shared(key: str, sections: dict[str, Any], flat: dict[str, Any]) -> None:
    """Take a section for a key of axolotl where it is a name that its tables have, or that no component has."""
    if key not in sections:
        return
    told, slot = sections[key], SLOTS[key]
    choices = [choice for _, choice in DIALECT.table.choosing()[key]]
    names = {name: ours for choice in choices for name, ours in choice.names.items()}
    if isinstance(told, Mapping) and told.get(slot.selector) in names:
        sections[key] = {**told, slot.selector: names[told[slot.selector]]}
    elif not isinstance(told, Mapping) and (str(told) in names or (slot.kind, str(told)) not in installed().named):
        flat[key] = sections.pop(key)
