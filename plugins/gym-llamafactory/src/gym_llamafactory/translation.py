"""A file of LLaMA-Factory, translated into the sections of a recipe by the installed tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_core.dialect import parted
from gym_core.errors import RecipeError
from gym_core.sections import Findings
from gym_dialect.placing import Dialect, place, take_apart
from gym_llamafactory.stated import STATED
from gym_llamafactory.table import KIND
from gym_llamafactory.tracking import KEYS as TRACKED
from gym_llamafactory.tracking import callbacks

FOR_ANOTHER = {"export_dir": "export", "do_predict": "predict", "infer_backend": "chat"}
"""Keys of files without rows to train on, and the command that such a file is for."""
TOP = {"output_dir": "output"}  #: keys that are a section by themselves
HOLDING = ("optim_args", "lr_scheduler_kwargs")
"""Keys that hold others, as a mapping, as JSON or as `name=value, ...`; each is a key by itself: `optim_args.name`."""
ANSWERING = ("temperature", "top_p", "max_new_tokens")  #: keys of `gym predict`, where `do_predict` stands beside them
CALLBACKS = ("model_in_output",)  #: what watches each run
DIALECT = Dialect(
    KIND,
    STATED,
    TOP,
    dict.fromkeys(("lora_alpha", "lora_dropout", "lora_rank", "lora_target"), "adapter"),
    frozenset({*HOLDING, *TRACKED}),
)


def translate(data: Mapping[str, Any], found: Findings) -> dict[str, Any]:
    """Return the sections that a file means. Notes every key that cannot be placed.

    Raises RecipeError where it trains nothing, and another command reads it.
    """
    if not {"dataset", "data"} & data.keys() and not data.get("do_train"):
        _read_by_another(data, found)
    sections, flat = parted(data)
    take_apart(HOLDING, flat, found)
    watching = callbacks(flat, found)
    for key in ANSWERING if flat.get("do_predict") else ():
        flat.pop(key, None)
    place(DIALECT, sections, flat, found)
    given = sections.get("callbacks") or []
    sections["callbacks"] = [*(given if isinstance(given, list) else [given]), *CALLBACKS, *watching]
    return sections


def _read_by_another(data: Mapping[str, Any], found: Findings) -> None:
    key = next((key for key in FOR_ANOTHER if data.get(key)), "")
    if key:
        why = "is of a file that names no rows to train on"
        raise RecipeError(
            why, where=found.where((key,)), key=key, fix=f"run `gym {FOR_ANOTHER[key]}` on it, or set `dataset`"
        )
