"""Caches for tests: empty, but for the C files of packages that are compiled already, which no test waits for again."""

from __future__ import annotations

from pathlib import Path

from gym_core.files import cache_dir

KERNELS = "kernels"  #: the folder of a cache where compiled C files lie


def own_cache(folder: Path) -> str:
    """Return a cache folder of its own for `GYM_CACHE`; what is compiled goes to that of the cache in use, and comes from it."""
    kernels = cache_dir() / KERNELS
    kernels.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / KERNELS).exists():
        (folder / KERNELS).symlink_to(kernels.resolve(), target_is_directory=True)
    return str(folder)
