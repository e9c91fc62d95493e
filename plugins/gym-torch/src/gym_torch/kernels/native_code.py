"""C files of packages: compiled for this machine at first use, and cached in `$GYM_CACHE` by source, flags and processor."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from platform import machine

from gym_core.files import cache_dir, replacing, write_atomically

FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-w")
#: What torch may be held to by `ATEN_CPU_CAPABILITY`, and the processors that have no more than that.
HELD = {"avx2": "x86-64-v3", "default": "x86-64"}
#: For instructions of this machine alone, and no more of them than torch uses. Without the second the compilers prefer vectors of
#: half the width; those for other processors than x86 do not know it.
THIS_MACHINE = (
    f"-march={HELD.get(os.environ.get('ATEN_CPU_CAPABILITY', ''), 'native')}",
    "-mprefer-vector-width=512",
)
THREADS = ("-fopenmp",)  #: left out where the compiler does not know it; everything then runs in one thread
OFF = "GYM_COMPILE_C"  #: set to 0, nothing is compiled
SECONDS = 120  #: that a compiler may take
WHOLE = ".sha256"  #: the file beside a library that says what it holds


@cache
def library(source: Path, flags: tuple[str, ...] = ()) -> ctypes.CDLL | None:
    """Return a C file as a loaded library, compiled if not cached; None where there is no compiler, it fails, or it is disabled.

    It uses the OpenMP runtime of torch, which must be loaded before.
    """
    compiler = _compiler()
    if compiler is None or os.environ.get(OFF) == "0":
        return None
    try:
        flags = _known(compiler, flags)
        made_of = [FLAGS, flags, THREADS, compiler, sys.platform, machine(), _features(compiler, flags)]
        key = hashlib.sha256(text(source) + repr(made_of).encode()).hexdigest()[:32]
        file = cache_dir() / "kernels" / f"{source.stem}-{key}.so"
        return ctypes.CDLL(str(file if _ours(file) else _compile(compiler, source, flags, file)))
    except (OSError, subprocess.SubprocessError):
        return None


def text(source: Path) -> bytes:
    """Return the text of a file and of the headers beside it."""
    return b"".join(part.read_bytes() for part in (source, *sorted(source.parent.glob("*.h"))))


@cache
def features() -> bytes:
    """Return the features of the processor, as a compiler reports them; empty without a working compiler."""
    compiler = _compiler()
    with suppress(OSError, subprocess.SubprocessError):
        return _features(compiler, _known(compiler, THIS_MACHINE)) if compiler else b""
    return b""


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")


def _known(compiler: str, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return those flags that a compiler supports."""
    return tuple(flag for flag in flags if _asked(compiler, (flag,)).returncode == 0)


def _features(compiler: str, flags: tuple[str, ...]) -> bytes:
    """Return the predefined macros of the compiler for this processor: machines that differ may share a cache."""
    return _asked(compiler, flags).stdout


@cache
def _asked(compiler: str, flags: tuple[str, ...]) -> subprocess.CompletedProcess[bytes]:
    command = [compiler, *flags, "-dM", "-E", "-x", "c", os.devnull]
    return subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)


def _ours(file: Path) -> bool:
    """Whether the file exists, is owned by this user, and is complete: it is executed, and a truncated file kills the process."""
    said = file.with_suffix(WHOLE)
    if not (file.is_file() and said.is_file()) or (os.name == "posix" and file.stat().st_uid != os.getuid()):
        return False
    return _digest(file) == said.read_text(encoding="utf-8", errors="replace")


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _compile(compiler: str, source: Path, flags: tuple[str, ...], file: Path) -> Path:
    """Compile into a temporary file and rename it, so that other processes see the whole file or none."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(file) as building:
        for threads in (THREADS, ()):
            command = [compiler, *FLAGS, *flags, *threads, str(source), "-o", str(building), "-lm"]
            if subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).returncode == 0:
                break
        else:
            raise OSError("the compiler failed")
        digest = _digest(building)
    write_atomically(file.with_suffix(WHOLE), digest)
    return file
