"""The first code of a sandboxed process: it takes its rights away, then runs what it was given. Standard library alone.

Run as a script with `name=value` arguments (`Job`), the program on a file descriptor. It stays as a supervisor outside of
what it makes: it ends the program at its deadline, and its exit status is the verdict. It starts once for every test of every
answer, so it imports only what costs next to nothing: no pathlib, no typing, no json.
"""

# /tmp is that of the new root.
# ruff: noqa: PTH101, PTH102, PTH103, PTH114, PTH115, PTH120, PTH211, S108

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

PASSED, FAILED, TIMED_OUT, UNAVAILABLE = 0, 1, 124, 125

_NEW_USER = 0x10000000
_NEW_REST = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000  # mounts, host name, IPC, processes, network
_READ_ONLY, _NO_SUID, _NO_DEVICES = 1, 2, 4
_BIND, _RECURSIVE, _PRIVATE, _DETACH = 4096, 16384, 1 << 18, 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_SET_PDEATHSIG, _SET_DUMPABLE, _CAPBSET_DROP, _SET_NO_NEW_PRIVS = 1, 4, 24, 38
_CAPABILITIES_V3 = 0x20080522
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_READY = 3  #: descriptor on which the program's process says that it is confined


class Job:
    """What to run and how to confine it, from `name=value` arguments."""

    def __init__(self, arguments: Sequence[str]) -> None:
        given = [argument.partition("=")[::2] for argument in arguments]
        values = dict(given)
        self.namespaces = values["namespaces"] == "True"
        self.user_namespace = values["user_namespace"] == "True"
        self.uid = int(values["uid"])  #: 0 to stay who one is
        self.seconds = float(values["seconds"])
        self.disk = int(values["disk"])  #: bytes
        self.directory = values["directory"]
        self.entry = values["entry"]  #: function of `wire.py` that gets the source; empty to run it
        self.libraries = [value for name, value in given if name == "library"]
        self.limits = {name: int(value) for name, value in given if name.startswith("RLIMIT_")}
        self.source, self.script = _read(int(values["source"])), ""
        if self.entry:
            self.script = _read(
                os.open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "wire.py"), os.O_RDONLY)
            )


def _read(descriptor: int) -> str:
    with os.fdopen(descriptor, "r", encoding="utf-8", errors="surrogatepass", newline="") as file:
        return file.read()


def main() -> NoReturn:
    """Isolate, fork, supervise. The child never returns to code that has rights."""
    job = Job(sys.argv[1:])
    libc = ctypes.CDLL(None, use_errno=True)
    with _or_give_up():
        if job.namespaces:
            _enter_namespaces(libc, job)
        reader, writer = os.pipe()
        child = os.fork()
    if child:
        os.close(writer)
        os._exit(_supervise(child, reader, job))
    with _or_give_up():
        os.dup2(writer, _READY)
        os.closerange(_READY + 1, 4096)
        if job.namespaces:
            _enter_root(libc, job)
        _drop_rights(libc, job)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    os.write(_READY, b"!")
    os.close(_READY)
    _run(job)
    sys.exit(PASSED)


class _or_give_up:  # noqa: N801 - reads as a statement
    """Say why no sandbox can be made here, and end with the status for it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201 - its only channel
            os._exit(UNAVAILABLE)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _enter_namespaces(libc: ctypes.CDLL, job: Job) -> None:
    """Leave the network, the processes, the mounts and the IPC of the machine."""
    uid, gid = os.geteuid(), os.getegid()
    _check(libc.unshare(_NEW_REST | (_NEW_USER if job.user_namespace else 0)))
    if job.user_namespace:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)


def _enter_root(libc: ctypes.CDLL, job: Job) -> None:
    """Make a small memory file system the root: the standard library read-only, three devices, and /tmp to write in."""

    def mount(
        source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None
    ) -> None:
        words = [part and os.fsencode(part) for part in (source, target, kind)]
        _check(libc.mount(*words, ctypes.c_ulong(flags), data and data.encode()))

    root = job.directory
    mount(None, "/", flags=_RECURSIVE | _PRIVATE)
    mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEVICES, f"size={job.disk},nr_inodes=4096,mode=755")
    for path in job.libraries:
        inside = root + path
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), inside)
            continue
        os.makedirs(inside, exist_ok=True)
        mount(path, inside, flags=_BIND | _RECURSIVE)
        attributes = (ctypes.c_uint64 * 4)(_READ_ONLY | _NO_SUID | _NO_DEVICES, 0, 0, 0)
        _check(libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(inside), _AT_RECURSIVE, attributes, 32))
    os.mkdir(f"{root}/dev")
    for device in _DEVICES:
        with open(root + device, "wb"):
            mount(device, root + device, flags=_BIND)
    os.makedirs(f"{root}/tmp", exist_ok=True)
    os.chmod(f"{root}/tmp", 0o1777)  # noqa: S103 - the one place where the program may write
    os.chdir(root)
    _check(libc.pivot_root(b".", b"."))
    _check(libc.umount2(b".", _DETACH))
    os.chdir("/tmp")


def _drop_rights(libc: ctypes.CDLL, job: Job) -> None:
    """Set the limits, and become nobody for good."""
    uid, on_linux = job.uid, sys.platform == "linux"
    if not job.namespaces:
        if uid:
            os.chown(job.directory, uid, uid)
        os.chdir(job.directory)
    for name, value in job.limits.items():
        if hasattr(resource, name):
            resource.setrlimit(getattr(resource, name), (value, value))
    if on_linux:
        for capability in range(64):
            libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # an unprivileged process may not, and need not
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if on_linux:
        _check(libc.capset((ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)()))
        _check(libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _check(libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0))
        _check(libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def _supervise(child: int, ready: int, job: Job) -> int:
    """Wait for the program, or end it with all that it started; return the verdict."""
    late: list[int] = []

    def ring(signum: int, frame: object) -> None:
        late.append(signum)
        os.kill(child, signal.SIGKILL)

    confined = os.read(ready, 1) == b"!"
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, job.seconds)
    _, status = os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if not confined:
        return UNAVAILABLE
    if job.uid and not job.namespaces:
        _kill_user(job.uid)
    if late:
        return TIMED_OUT
    return FAILED if status else PASSED


def _kill_user(uid: int) -> None:
    """End every process of a user that only this program runs as."""
    helper = os.fork()
    if helper == 0:
        os.setresuid(uid, uid, uid)
        os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(helper, 0)


def _run(job: Job) -> None:
    """Run the program as `__main__`, or a function of the script that works on it."""
    os.environ.clear()
    if not job.namespaces:
        _watch(os.path.realpath(job.directory), [os.path.realpath(path) for path in job.libraries])
    if job.script:
        module = types.ModuleType("script")
        exec(compile(job.script, "<sandbox>", "exec"), module.__dict__)  # noqa: S102 - text of our own
        getattr(module, job.entry)(job.source)
        return
    module = types.ModuleType("__main__")
    sys.modules["__main__"], sys.argv = module, ["answer.py"]
    exec(compile(job.source, "answer.py", "exec"), module.__dict__)  # noqa: S102 - what this process is for
    sys.stdout.flush()


def _watch(directory: str, libraries: Sequence[str]) -> None:
    """Let the interpreter refuse what the kernel was not asked to; native code it does not see."""
    refused = (
        "socket.",
        "subprocess.",
        "os.system",
        "os.fork",
        "os.exec",
        "os.posix_spawn",
        "os.kill",
        "ctypes.",
        "sqlite3.",
        "resource.",
    )
    changing = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.ch")

    def inside(path: Any, places: Sequence[str]) -> bool:
        if isinstance(path, int):
            return True
        real = os.path.realpath(os.fsdecode(path))
        return any(real == place or real.startswith(place + os.sep) for place in places)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(refused):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open":
            path, mode, flags = arguments
            writes = flags & (os.O_WRONLY | os.O_RDWR) or set(mode or "") & set("wax+")
            if not inside(path, [directory, os.devnull] if writes else [directory, os.devnull, *libraries]):
                raise PermissionError(f"{path} is out of bounds")
        elif event.startswith(changing):
            paths = [path for path in arguments[:2] if isinstance(path, str | bytes)]
            if not all(inside(path, [directory]) for path in paths):
                raise PermissionError(f"{event} is out of bounds")

    sys.addaudithook(hook)


if __name__ == "__main__":
    main()
