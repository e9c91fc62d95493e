"""Folders that `save_to_disk` of the library `datasets` writes: Arrow files, and in which order they hold the rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gym_core import DataError

DATASET, SPLITS = "state.json", "dataset_dict.json"
SPLIT = "train"  #: that is read where a folder holds several and none is named


def saved_files(folder: Path) -> list[Path]:
    """Return the files of a folder, or of its split `train`; none where `datasets` did not save it.

    Raises DataError where it has no such split, or a file is not there.
    """
    if (folder / SPLITS).is_file():
        splits = [name for name in _told(folder / SPLITS, "splits") if isinstance(name, str)]
        if SPLIT not in splits:
            fix = f"name the folder of one, such as {folder / splits[0]}" if splits else ""
            raise DataError(f"it has no split `{SPLIT}`, but {', '.join(splits) or 'none'}", where=str(folder), fix=fix)
        folder /= SPLIT
    if not (folder / DATASET).is_file():
        return []
    names = [each.get("filename") for each in _told(folder / DATASET, "_data_files") if isinstance(each, dict)]
    files = [folder / name for name in names if isinstance(name, str) and Path(name).name == name]
    if len(files) < len(names):
        raise DataError("`_data_files` names what is no file of the folder", where=str(folder / DATASET))
    if lost := next((file for file in files if not file.is_file()), None):
        fix = "copy the whole folder, or save the dataset again"
        raise DataError(f"a part of the dataset is missing: {lost.name}", where=str(folder), fix=fix)
    return files


def _told(path: Path, key: str) -> list[Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {str(error)[:100]}", where=str(path)) from None
    told = found.get(key) if isinstance(found, dict) else None
    if not isinstance(told, list):
        raise DataError(f"it has no list `{key}`", where=str(path), fix="save the dataset again with `save_to_disk`")
    return told
