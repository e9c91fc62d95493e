"""Where compiled layers lie between runs: in a folder of `$GYM_CACHE` that names all that made them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from gym_core import GymError, cache_dir
from gym_core.files import replacing
from gym_data.provenance import maker
from gym_torch.kernels.native_code import features
from gym_torch.kernels.precision_probe import device_name

FOLDER = "TORCHINDUCTOR_CACHE_DIR"  #: where torch looks for what it compiled, and puts it
NOTE = "note.json"
_named: set[str] = set()  #: folders that this process named; any other is the user's choice


def use() -> Path:
    """Have torch keep what it compiles in the folder of this machine, unless the environment names one; return it.

    torch names its entries by its version and the graph, but not by the processor, nor by the number of threads that loops are
    cut for: both are in the name of the folder. Raises GymError where it belongs to another user, for what it holds is run.
    """
    if os.environ.get(FOLDER, default_cache_dir()) in {default_cache_dir(), *_named}:  # torch writes its own there too
        made_of = [
            torch.__version__,
            platform.python_version(),
            device_name(),
            torch.get_num_threads(),
            maker("gym_torch"),
        ]
        key = sha256(json.dumps(made_of).encode() + features()).hexdigest()[:16]
        os.environ[FOLDER] = str(cache_dir() / "compiled" / key)
        _named.add(os.environ[FOLDER])
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if os.name == "posix" and folder.stat().st_uid != os.getuid():
        raise GymError(
            "belongs to another user", where=str(folder), key="model.compile", fix=f"name another in {FOLDER}"
        )
    return folder


def known(what: str) -> dict[str, Any] | None:
    """Return what was noted of layers whose compiled code lies in the folder; None where nothing was, or it cannot be read."""
    with suppress(OSError, ValueError):
        found = json.loads((folder_of(what) / NOTE).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    return None


def folder_of(what: str) -> Path:
    """Return where the code of layers lies, by what tells them from others."""
    return use() / f"layers-{sha256(what.encode()).hexdigest()[:16]}"


def drop(what: str) -> None:
    """Forget the code of layers."""
    rmtree(folder_of(what), ignore_errors=True)


def keep(what: str, make: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """Have the code of layers made in a folder, and keep it with the note that `make` returns, as a whole or not at all."""
    with suppress(OSError), replacing(folder_of(what)) as building:  # another process may have made it by now
        building.mkdir(mode=0o700)
        found = dict(make(building))
        (building / NOTE).write_text(json.dumps(found), encoding="utf-8")
    return found
