"""A file of the second version, told in the keys of the first, but for data and template, which are the model's own there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gym_core.dialect import mapping_of, parted
from gym_core.sections import Findings
from gym_dialect.convert import note
from gym_llamafactory import translation
from gym_llamafactory.keys.run import EPOCHS, KEEP_ALL
from gym_llamafactory.v1 import keys, plugin_sections
from gym_llamafactory.v1.datasets import sources
from gym_llamafactory.v1.first_version import FirstVersionKeys


def translate(data: Mapping[str, Any], found: Findings) -> dict[str, Any]:
    """Return the sections that a file means. Notes every key that cannot be placed."""
    sections, flat = parted(data)
    told = FirstVersionKeys(found)
    if isinstance(sections.get("model"), str):
        told.put("model", sections.pop("model"))
    _sources(sections, flat, told)
    plugin_sections.take(sections, flat, told)
    for key, value in ({key: flat.pop(key, usual) for key, usual in keys.DEFAULTS.items()}).items():
        told.put(key, value)
    for key in [key for key in flat if key in keys.ALIKE or key in keys.RENAMED]:
        told.put(key, flat.pop(key))
    for key in sorted(keys.STATED.keys() & flat.keys()):
        stated, value = keys.STATED[key], flat.pop(key)
        if stated.values and value not in stated.values:
            told.problem(key, stated.why, stated.fix)
        elif stated.note and value not in (None, False, 1):
            note(f"{key}: {stated.note}")
    for key in sorted(flat.keys() & translation.DIALECT.known()):
        del flat[key]
        told.problem(key, "is of files with `model_name_or_path`", "leave it out, or write the file in those keys")
    if "algorithm" not in sections:
        told.keys["stage"] = "dpo" if told.pairs or keys.PREFERENCE & told.keys.keys() else "sft"
    before = len(found.problems)
    fixed = {key: value for key, value in keys.FIXED.items() if key not in keys.OF_ADAMW or "optimizer" not in sections}
    translated = translation.translate({**sections, **flat, **fixed, **told.keys}, found)
    found.problems[before:] = [replace(each, key=told.old.get(each.key, each.key)) for each in found.problems[before:]]
    found.keys.update({path: told.old[key] for path, key in found.keys.items() if key in told.old})
    return translated


def _sources(sections: dict[str, Any], flat: dict[str, Any], told: FirstVersionKeys) -> None:
    """Name rows and how many make a step."""
    named = flat.pop("train_dataset", None)
    section = mapping_of(sections, "data")
    own = flat.pop("custom_chat_template", None)
    section.setdefault("template", {"name": "jinja", "text": str(own)} if own else None)
    section.setdefault("bad_rows", "stop")
    try:
        read, told.pairs = sources(str(named))
        section.setdefault("sources", read)
    except ValueError as error:
        section.setdefault("sources", [str(named)])
        told.problem("train_dataset", str(error))
    held = flat.pop("eval_dataset", None)
    if held is not None:
        try:
            section.setdefault("validation_sources", sources(str(held))[0])
        except ValueError as error:
            told.problem("eval_dataset", str(error))
    share = flat.pop("save_epochs", None)
    if share is not None and (flat.get("max_steps") or 0) > 0:
        told.problem("save_epochs", "is a share of all steps, and `max_steps` says how many", "set `save_steps`")
    elif share is not None:
        every = float(share) / float(flat.get("num_train_epochs") or EPOCHS)
        flat["save_steps"] = every if every < 1 else KEEP_ALL
    micro, cutoff = flat.get("micro_batch_size") or 1, flat.get("cutoff_len") or keys.DEFAULTS["cutoff_len"]
    whole = flat.pop("global_batch_size", None)
    if whole is not None and whole % micro:
        told.problem("global_batch_size", f"is no multiple of `micro_batch_size`, {micro}", "make it one")
    elif whole is not None:
        told.put("global_batch_size", whole // micro, "gradient_accumulation_steps")
    strategy = flat.pop("batching_strategy", "normal")
    if strategy in ("dynamic_batching", "dynamic_padding_free"):
        mapping_of(sections, "train").setdefault("batch_tokens", micro * cutoff)
        section.setdefault("whole_epochs", False)
        flat["micro_batch_size"] = None
    elif strategy not in ("normal", "padding_free"):
        fix = "one of: normal, padding_free, dynamic_batching, dynamic_padding_free"
        told.problem("batching_strategy", f"there is no `{strategy}`", fix)
    attention = flat.pop("flash_attn", None)
    if attention in keys.ATTENTION:
        told.put("flash_attn", keys.ATTENTION[attention])
    elif attention is not None:
        told.problem("flash_attn", f"there is no `{attention}`", f"one of: {', '.join(keys.ATTENTION)}")
