"""`run.json`: the recipe of a run, its components and environment, and its outcome. It has no names of hosts or users."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_core.discovery import installed
from gym_core.errors import GymError, Problem, unexpected
from gym_core.files import write_atomically

#: distributions whose versions can change a number of a run
_TELLING = re.compile(
    r"gym-.*\Z|(accelerate|bitsandbytes|datasets|deepspeed|numpy|peft|safetensors|tokenizers|torch|transformers|vllm)\Z"
)


class RunRecord:
    """The record of one run. Its only writer is the process that has the lock of the output directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """Return the record, empty where there is no file. Raises GymError for a damaged one."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise GymError("is not a run record", where=str(self.path), fix="move it away to start a new run here")
        return found

    def update(self, **values: Any) -> None:
        """Merge values into the record, mappings key by key, and write it atomically."""
        text = json.dumps(_merged(self.read(), plain(values)), indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(self.path, text + "\n", alone=True)


class Unwritten(RunRecord):
    """The record in a process that must not write it."""

    def update(self, **values: Any) -> None:
        """Do nothing: the main process writes."""


def environment() -> dict[str, Any]:
    """Return Python, platform, processors and the versions that can change numbers, from metadata alone."""
    versions = {name: folder.version for name, folder in installed().folders.items()}
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "packages": {name: versions[name] for name in sorted(versions) if _TELLING.match(name)},
    }


def explained(error: BaseException) -> dict[str, Any]:
    """Return the problems of an error, with the traceback of an unexpected one."""
    if isinstance(error, GymError):
        return {"problems": [problem.to_json() for problem in error.problems]}
    problem = Problem(f"{type(error).__name__}: {error}", where=unexpected(error))
    return {"problems": [problem.to_json()], "traceback": "".join(traceback.format_exception(error))}


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    both = [key for key in new if isinstance(old.get(key), dict) and isinstance(new[key], dict)]
    return old | new | {key: _merged(old[key], new[key]) for key in both}


def plain(value: Any) -> Any:
    """Return what JSON can hold; a number that is not finite becomes None, which readers with types take among numbers."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    lost = isinstance(value, float) and not math.isfinite(value)
    return None if lost else str(value) if isinstance(value, Path) else value
