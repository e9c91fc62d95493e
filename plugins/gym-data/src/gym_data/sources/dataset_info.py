"""Names: an entry of `dataset_info.json` in LLaMA-Factory's schema, else a path, else a Hub id."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from gym_core import DataError
from gym_core.discovery import entries, nearest
from gym_core.files import expanded
from gym_data.formats import Alpaca, Feedback, Messages, Preference, ShareGPT, Text
from gym_data.kinds import Format
from gym_data.sources.compression import kind_of
from gym_data.sources.config import File, Hub
from gym_data.sources.readers import READERS, whole
from gym_data.sources.saved_folder import DATASET, SPLIT

REGISTRY = "dataset_info.json"
HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")
TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "observation",
    "function_tag": "function",
    "system_tag": "system_role",
}


class Columns(BaseModel):
    """Which column plays which part. Once one is given, the parts left out have no column."""

    model_config = ConfigDict(extra="forbid")

    prompt: str | None = None
    query: str | None = None
    response: str | None = None
    history: str | None = None
    messages: str | None = None
    system: str | None = None
    tools: str | None = None
    images: str | None = None
    videos: str | None = None
    audios: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    kto_tag: str | None = None


class Info(BaseModel):
    """One entry of the registry; keys that only other programs read are left alone."""

    model_config = ConfigDict(extra="ignore")

    hf_hub_url: str | None = None
    ms_hub_url: str | None = None
    om_hub_url: str | None = None
    script_url: str | None = None
    cloud_file_name: str | None = None
    file_name: str | None = None
    formatting: str = "alpaca"
    ranking: bool = False
    subset: str | None = None
    split: str = "train"
    folder: str | None = None
    num_samples: PositiveInt | None = None
    columns: Columns | None = None
    tags: dict[str, str] = {}


def find_source(name: str, directory: Path) -> tuple[File | Hub, Format | None, int | None]:
    """Return the source that a name stands for, and the format and number of rows that the registry of `directory` states.

    Raises DataError where it stands for nothing.
    """
    registry = read_registry(directory)
    if name in registry:
        return _registered(name, registry[name], directory)
    for path in (expanded(name), directory / name):
        if path.exists():
            return File(path=str(path)), None, None
    if HUB_ID.fullmatch(name) and kind_of(Path(name)) not in READERS:
        return Hub(path=name), None, None
    sources = [entry.name for entry in entries("sources")]
    near = nearest(name, [*registry, *sources]) or _similar_file(expanded(name))
    have = f"{directory / REGISTRY} has {', '.join(sorted(registry)[:8])}"
    none = f"name a file, or in `data.dataset_dir` the folder of a {REGISTRY}: there is none in `{directory}`"
    raise DataError(
        "no dataset, file or Hub id of that name",
        where=name,
        fix=f"did you mean `{near}`?" if near else have if registry else none,
    )


def _similar_file(path: Path) -> str:
    """Return the file of rows beside this path whose name is nearest, or ""."""
    rows = (each.name for each in sorted(path.parent.glob("*")) if kind_of(each) in READERS)
    near = nearest(path.name, rows)
    return str(path.with_name(near)) if near else ""


def read_registry(directory: Path) -> dict[str, Any]:
    """Return the entries of a folder's `dataset_info.json`, none where there is no such file."""
    path = directory / REGISTRY
    if not path.is_file():
        return {}
    try:
        registry = json.loads(whole(path))
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    if not isinstance(registry, dict):
        raise DataError("expected an object of dataset names", where=str(path))
    return registry


def _registered(name: str, raw: Any, directory: Path) -> tuple[File | Hub, Format | None, int | None]:
    where = f"{directory / REGISTRY}: {name}"
    try:
        info = Info.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        near = nearest(key.rpartition(".")[2], Columns.model_fields)
        raise DataError(
            "unknown key" if first["type"] == "extra_forbidden" else first["msg"],
            where=where,
            key=key,
            fix=f"did you mean `{near}`?" if near else "",
        ) from None
    format = format_of(info, where)
    if info.hf_hub_url:
        hub = Hub(path=info.hf_hub_url, subset=info.subset, split=info.split, folder=info.folder)
        return hub, format, info.num_samples
    if info.file_name and not (info.script_url or info.cloud_file_name):
        if info.split != SPLIT and (directory / info.file_name / info.split / DATASET).is_file():
            return File(path=str(directory / info.file_name / info.split)), format, info.num_samples
        if info.split != SPLIT:
            fix = "leave it out, or write those rows into a file of their own"
            raise DataError(f"a file has no split `{info.split}`", where=where, key="split", fix=fix)
        return File(path=str(directory / info.file_name)), format, info.num_samples
    raise DataError(
        "neither `hf_hub_url` nor `file_name` says where the rows are",
        where=where,
        fix="scripts, clouds and other hubs are not read: download the rows and set `file_name`",
    )


def format_of(info: Info, where: str = "") -> Format | None:
    """Return the row format that an entry describes; None where it says nothing and the rows shall tell."""
    if not info.model_fields_set & {"formatting", "columns", "tags", "ranking"}:
        return None
    columns = info.columns or Columns()
    media = {
        name: column
        for name, column in (("images", columns.images), ("videos", columns.videos), ("audios", columns.audios))
        if column
    }
    unknown = [tag for tag in info.tags if tag not in TAGS]
    if unknown:
        raise DataError("unknown tag", where=where, key=f"tags.{unknown[0]}", fix=f"known: {', '.join(TAGS)}")
    if info.formatting == "alpaca":
        said = bool(info.columns)
        if said and columns.prompt and not (columns.response or info.ranking or columns.kto_tag):
            return Text(text=columns.prompt)
        if said and not columns.prompt:
            named = 'name it beside the others: "prompt": "instruction"'
            fix = 'set "formatting": "sharegpt" for rows of messages' if columns.messages else named
            raise DataError("no column holds the prompt", where=where, key="columns.prompt", fix=fix)
        base: Format = Alpaca.model_validate(
            {"system": columns.system, "tools": columns.tools, "history": columns.history}
            | media
            | ({"prompt": columns.prompt, "query": columns.query, "response": columns.response} if said else {})
        )
    elif info.formatting in ("sharegpt", "openai"):
        options: dict[str, Any] = {TAGS[tag]: value for tag, value in info.tags.items()} | media
        options |= {"messages": columns.messages} if columns.messages else {}
        options |= {"system": columns.system, "tools": columns.tools}
        base = (ShareGPT if info.formatting == "sharegpt" else Messages).model_validate(options)
    else:
        known = "known: alpaca, sharegpt, openai"
        raise DataError(f"`{info.formatting}` is no row format", where=where, key="formatting", fix=known)
    if info.ranking:
        return Preference(prompt=base, chosen=columns.chosen or "chosen", rejected=columns.rejected or "rejected")
    if columns.kto_tag:
        return Feedback(conversation=base, label=columns.kto_tag)
    return base
