"""What is learnt from, and how it is prepared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gym_core.component import load_object
from gym_dialect import Key
from gym_dialect.convert import names, note, numbers, unread
from gym_llamafactory.stated.numbers import COUNTED, JOINED
from gym_llamafactory.table import Keys

_OF = "dataset"


def template(name: Any, **options: Any) -> dict[str, Any]:
    """Return LLaMA-Factory's template of a name; without one, its reading of the model's own."""
    return {"name": "llamafactory", "format": str(name) or None, **options} if not isinstance(name, dict) else name


def folder(name: Any) -> Any:
    """Take a folder; a repository on the Hub is not read in its place."""
    if str(name).startswith("REMOTE:"):
        named = str(name).removeprefix("REMOTE:")
        raise ValueError(
            f"is a repository on the Hub: run `hf download {named} --repo-type dataset --local-dir DIR`, and name DIR"
        )
    return name


def tokens(path: Any) -> None:
    """Take where LLaMA-Factory keeps tokens; here they are in the cache. Raises ValueError where it has kept some there."""
    if Path(str(path)).exists():
        raise ValueError(
            "holds tokens that LLaMA-Factory wrote, which are not read: leave it out, and name the dataset"
        )
    note("tokenized_path: tokens are kept in the cache; nothing is written there, and training begins at once")


def packed(value: Any, stage: Any = None) -> str | None:
    """Return how plain text is cut: joined, as `stage: pt` means where the key is left out, or document by document.

    Beside stages of pairs it says nothing, as there.
    """
    if stage == "pt":
        return None if value else "documents"
    if value and str(stage or "sft").lower() == "sft":
        raise ValueError(f"{JOINED}: {COUNTED}")
    return None


def neatly_packed(value: Any, stage: Any = None) -> None:
    """Take a switch that is off, which there goes with conversations alone. Raises ValueError where it is on."""
    if learnt("all")(value, stage):
        raise ValueError(f"{JOINED}: {COUNTED}")


def length(tokens: Any, packing: Any = None, stage: Any = None) -> Any:
    """Return the most tokens of a sample; of blocks one less where `packing` asks for them, as there."""
    return int(tokens) - 1 if stage == "pt" and packing is True else tokens


def window(rows: Any, streaming: Any = None) -> Any:
    """Return the rows of a window; without `streaming` they say nothing, as there."""
    return rows if streaming else None


def split(value: Any, add_special_tokens: Any = None, new_special_tokens_config: Any = None) -> Any:
    """Return whether special tokens of rows are split; left out, not in a file that adds some: they are for rows."""
    if value != "":
        return value
    return False if add_special_tokens or new_special_tokens_config else None


def learnt(option: str) -> Callable[..., str | None]:
    """Return a conversion for a switch that says which parts of conversations are learnt, where they are learnt from."""

    def said(value: Any, stage: Any = None) -> str | None:
        if not isinstance(value, bool):
            raise ValueError(f"is true or false, not `{value}`")
        if value and str(stage or "sft").lower() != "sft":
            raise ValueError(f"goes with `stage: sft`, not with `{stage}`: leave it out")
        return option if value else None

    return said


def media(
    _: Any,
    dataset: Any = None,
    eval_dataset: Any = None,
    dataset_dir: Any = "data",
    media_dir: Any = None,
    image_max_pixels: Any = None,
    image_min_pixels: Any = None,
    video_max_pixels: Any = None,
    video_min_pixels: Any = None,
    video_fps: Any = None,
    video_maxlen: Any = None,
) -> dict[str, Any] | None:
    """Return how media are read, where the registry says of a dataset which columns have some; None where it does of none.

    Raises ValueError for images or videos beside sounds, which one component does not read.
    """
    registry = load_object("gym_data.sources.dataset_info:read_registry")(Path(str(dataset_dir)))
    named = [
        registry.get(name) for name in (*names(dataset or []), *names(eval_dataset or [])) if isinstance(name, str)
    ]
    columns = {
        name
        for entry in named
        if isinstance(entry, dict)
        for name, each in (entry.get("columns") or {}).items()
        if each
    }
    seen, heard = columns & {"images", "videos"}, columns & {"audios"}
    if seen and heard:
        raise ValueError(
            f"datasets with {min(seen)} and with audios are not read together: train on one after the other"
        )
    folder = media_dir or dataset_dir
    if not seen:
        return {"name": "sound", "folder": folder} if heard else None
    told = {
        "folder": folder,
        "max_pixels": image_max_pixels,
        "min_pixels": image_min_pixels,
        "video_max_pixels": video_max_pixels,
        "video_min_pixels": video_min_pixels,
        "video_fps": video_fps,
        "video_max_frames": video_maxlen,
    }
    return {"name": "vision", **{option: value for option, value in told.items() if value is not None}}


class DataKeys(Keys):
    """Keys of the data."""

    keys = (
        Key("dataset", "data.sources", _OF, names),
        Key("eval_dataset", "data.validation_sources", _OF, names),
        Key("dataset_dir", "data.dataset_dir", _OF, folder),
        Key(
            "template",
            "data.template",
            _OF,
            template,
            default="",
            together="enable_thinking preserve_thinking tool_format",
            null="enable_thinking",
        ),
        Key("default_system", "data.system", _OF),
        Key(
            "split_special_tokens",
            "data.split_special_tokens",
            _OF,
            split,
            default="",
            together="add_special_tokens new_special_tokens_config",
        ),
        Key("cutoff_len", "data.cutoff", _OF, length, together="packing stage"),
        Key("max_samples", "data.max_samples", _OF),
        Key("streaming", "data.streaming", _OF),
        Key("buffer_size", "data.buffer_size", _OF, window, together="streaming"),
        Key("val_size", "data.validation", _OF),
        Key("eval_on_each_dataset", "data.validation_apart", _OF),
        Key("mix_strategy", "data.mix", _OF),
        Key("interleave_probs", "data.mix_weights", _OF, numbers),
        Key("train_on_prompt", "data.train_on", _OF, learnt("all"), together="stage"),
        Key("mask_history", "data.train_on", _OF, learnt("last"), together="stage"),
        Key("packing", "data.split", _OF, packed, together="stage"),
        Key("neat_packing", "data.split", _OF, neatly_packed, together="stage"),
        Key("preprocessing_num_workers", "data.processes", _OF),
        Key("overwrite_cache", "data.rebuild", _OF),
        Key("tokenized_path", "data.rebuild", _OF, tokens),
        Key("dataloader_num_workers", "data.rebuild", _OF, unread),
        Key(
            "",
            "data.media",
            _OF,
            media,
            default="",
            together="dataset eval_dataset dataset_dir media_dir image_max_pixels image_min_pixels"
            " video_max_pixels video_min_pixels video_fps video_maxlen",
        ),
        Key("", "data.bad_rows", _OF, default="skip"),
        Key("", "data.whole_epochs", _OF, default=True),
    )
