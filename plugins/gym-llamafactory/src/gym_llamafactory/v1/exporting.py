"""A file of the second version for `merge`: the section of the adapter says where to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_core.errors import Problem
from gym_core.sections import Findings
from gym_llamafactory import exporting


def translate(data: Mapping[str, Any], found: Findings) -> dict[str, Any]:
    """Return what `gym export` writes. Notes every key that nobody obeys here."""
    given, section = dict(data), data["peft_config"]
    del given["peft_config"]
    adapter = dict(section) if isinstance(section, Mapping) else {}
    for key in adapter:
        found.marks[key,] = found.where(("peft_config", key))
    if adapter.pop("name", None) != "lora":
        found.problems.append(
            Problem(
                "is not lora", found.where(("peft_config",)), "peft_config.name", "set it to lora, which can be merged"
            )
        )
    model = given.pop("model", None)
    return exporting.translate({"model_name_or_path": model, **given, **adapter}, found)
