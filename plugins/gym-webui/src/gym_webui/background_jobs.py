"""Commands that outlive the page and the server: each a process of its own session, with a log in the folder of its run.

A lock is handed to the process, which holds it until it ends, however it ends: what is under way is read from the disk, by this
server or by another one.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import threading
import time
from pathlib import Path

from gym_serve.api.errors import HTTPProblem
from gym_webui.site import Site
from gym_webui.subcommands import CLI, words

TRAIN, EXPORT = "train", "export"
TAIL = 64 * 1024  #: bytes of a log that are shown


def log_of(folder: Path, name: str) -> Path:
    """Return the log of what was started last under this name; hidden, so that a run still finds its folder empty."""
    return folder / f".webui-{name}.log"


def lock_of(folder: Path, name: str) -> Path:
    """Return the file that is locked while it is under way."""
    return folder / f".webui-{name}.lock"


def launch(site: Site, folder: Path, name: str, *arguments: str) -> None:
    """Start `gym ARGUMENTS`. Raises HTTPProblem (409) where the same is under way, so two clicks start one process."""
    folder.mkdir(parents=True, exist_ok=True)
    safe = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(lock_of(folder, name), os.O_RDWR | safe, 0o600)
    try:
        _hold(lock)
        log = os.open(log_of(folder, name), os.O_WRONLY | os.O_TRUNC | safe, 0o600)
        try:
            process = subprocess.Popen(
                words(CLI, *arguments),
                cwd=site.folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
            )
        finally:
            os.close(log)
    finally:
        os.close(lock)
    threading.Thread(target=process.wait, daemon=True).start()  # else it stays a zombie while the server runs


def _hold(lock: int) -> None:
    """Lock a file. A page that asks whether it is locked has it for a moment, so it is tried again. Raises HTTPProblem."""
    for _ in range(10):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise HTTPProblem(409, "it was started already, and is under way", code="under_way")


def under_way(folder: Path, name: str) -> bool:
    """Whether what was started under this name has not ended."""
    return locked(lock_of(folder, name))


def locked(path: Path) -> bool:
    """Whether a process holds the lock of a file; what is not there, and a link, nobody holds."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def tail(path: Path, most: int = TAIL) -> str:
    """Return the end of a text file, empty where there is none; lines that a terminal would have overwritten are left out."""
    found = end_of(path, most)
    lines = found.decode("utf-8", "replace").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def end_of(path: Path, most: int) -> bytes:
    """Return the last bytes of a regular file below a folder, and nothing of what is none or a link."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(file, "rb") as opened:
        try:
            opened.seek(max(0, os.fstat(file).st_size - most))
            return opened.read(most)
        except OSError:  # a folder, a pipe
            return b""
