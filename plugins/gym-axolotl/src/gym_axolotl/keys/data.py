"""What is learnt from, and how it is prepared."""

from __future__ import annotations

from typing import Any

from gym_axolotl.table import Keys
from gym_dialect import Key
from gym_dialect.convert import switched

_OF = "dataset"
_ROWS = 10_000  #: of a window, where the file does not say


def window(rows: Any, streaming: Any = None) -> Any:
    """Return the rows of a window; without `streaming` they say nothing."""
    return int(rows) if streaming else None


def learnt(everything: Any) -> str | None:
    """Return what of a conversation is learnt; None for answers alone."""
    return "all" if switched(everything) else None


class DataKeys(Keys):
    """Keys of the data."""

    keys = (
        Key("datasets", "data.sources", _OF),
        Key("pretraining_dataset", "data.sources", _OF),
        Key("test_datasets", "data.validation_sources", _OF),
        Key("val_set_size", "data.validation", _OF),
        Key("chat_template", "data.template", _OF),
        Key("chat_template_kwargs", "data.template_options", _OF),
        Key("default_system_message", "data.system", _OF),
        Key("sequence_len", "data.cutoff", _OF, default=512),
        Key("excess_length_strategy", "data.overlong", _OF, {"drop": "drop", "truncate": "truncate"}, "drop"),
        Key("train_on_inputs", "data.train_on", _OF, learnt),
        Key("streaming", "data.streaming", _OF),
        Key("streaming_multipack_buffer_size", "data.buffer_size", _OF, window, _ROWS, together="streaming"),
        Key("pretrain_multipack_buffer_size", "data.buffer_size", _OF, window, together="streaming"),
        Key("processor_type", "data.media", _OF, lambda _: "vision"),
        Key("dataset_num_proc", "data.processes", _OF),
        Key("dataset_processes", "data.processes", _OF),
        Key("", "data.bad_rows", _OF, default="skip"),
    )
