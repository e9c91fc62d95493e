"""Hashes of large files, computed once for each state of a file."""

from __future__ import annotations

import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gym_core.files import cache_dir, write_atomically
from gym_torch.model_files import weight_files

SETTLED = 2.0  #: seconds after which a change to a file shows in its times, whatever the file system
WORKERS = 4


def of_model(path: Path) -> str:
    """Return what names a model in a directory: it changes with any byte of its weights or of `config.json`.

    Weights are read in full, once: the hash of a file is remembered by device, inode, size and times in `$GYM_CACHE`.
    """
    files = sorted([*weight_files(path), *path.glob("config.json"), *path.glob("*.safetensors.index.json")])
    with ThreadPoolExecutor(WORKERS) as pool:
        hashes = list(pool.map(of_file, files))
    named = [[file.name, digest] for file, digest in zip(files, hashes, strict=True)]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]


def of_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    found = path.resolve().stat()
    state = [str(path.resolve()), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    key = hashlib.sha256(json.dumps(state).encode()).hexdigest()
    memory = cache_dir() / "hashes" / f"{key[:32]}.json"
    if memory.is_file():
        kept: dict[str, Any] = json.loads(memory.read_text(encoding="utf-8"))
        return str(kept["sha256"])
    with path.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    if time.time() - max(found.st_mtime, found.st_ctime) > SETTLED:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(memory, json.dumps({"file": path.name, "sha256": digest}))
    return digest
