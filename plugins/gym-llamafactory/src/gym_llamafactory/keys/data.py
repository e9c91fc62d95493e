"""What is learnt from, and how it is prepared."""

from __future__ import annotations

from typing import Any

from gym_llamafactory.keys.convert import names, numbers, unread
from gym_llamafactory.table import Key, Keys

_OF = "dataset"


def template(name: Any, **options: Any) -> dict[str, Any]:
    """Return LLaMA-Factory's template of a name; without one, its reading of the model's own."""
    return {"name": "llamafactory", "format": str(name) or None, **options} if not isinstance(name, dict) else name


class DataKeys(Keys):
    """Keys of the data."""

    keys = (
        Key("dataset", "data.sources", _OF, names),
        Key("dataset_dir", "data.dataset_dir", _OF),
        Key(
            "template",
            "data.template",
            _OF,
            template,
            default="",
            together="enable_thinking preserve_thinking tool_format",
        ),
        Key("default_system", "data.system", _OF),
        Key("split_special_tokens", "data.split_special_tokens", _OF),
        Key("cutoff_len", "data.cutoff", _OF),
        Key("max_samples", "data.max_samples", _OF),
        Key("val_size", "data.validation", _OF),
        Key("mix_strategy", "data.mix", _OF),
        Key("interleave_probs", "data.mix_weights", _OF, numbers),
        Key("train_on_prompt", "data.train_on", _OF, {True: "all", False: None}),
        Key("mask_history", "data.train_on", _OF, {True: "last", False: None}),
        Key("preprocessing_num_workers", "data.processes", _OF),
        Key("overwrite_cache", "data.rebuild", _OF),
        Key("dataloader_num_workers", "data.rebuild", _OF, unread),
        Key("", "data.bad_rows", _OF, default="skip"),
        Key("", "data.whole_epochs", _OF, default=True),
    )
