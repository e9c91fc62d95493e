"""How a process gives up what it may do: namespaces and a root of its own, or Landlock; then rights, and system calls.

All of it through the C library, which has no Python names for most of it. Sources: `namespaces(7)`, `pivot_root(2)`,
`mount_setattr(2)`, `landlock(7)`, `seccomp(2)`, `capabilities(7)`.
"""

# Paths are joined as text, because pathlib is slow to import; /tmp is that of the new root.
# ruff: noqa: PTH102, PTH103, PTH114, PTH115, PTH211, S108

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NEW_USER = 0x10000000
_NEW_REST = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000  # mounts, host name, IPC, processes, network
_READ_ONLY, _NO_SUID, _NO_DEVICES = 1, 2, 4
_BIND, _RECURSIVE, _PRIVATE, _DETACH = 4096, 16384, 1 << 18, 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_SECCOMP, _CAPBSET_DROP, _SET_NO_NEW_PRIVS, _SET_THP_DISABLE = 1, 4, 22, 24, 38, 41
_FILTER = 2
_CAPABILITIES_V3 = 0x20080522
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT, _LANDLOCK_VERSION, _BENEATH = 444, 445, 446, 1, 1
_LANDLOCK_OLDEST = 3  #: Linux 6.2, the first that can forbid to truncate
_WRITE_FILE, _READ_FILE, _READ_FOLDER, _EVERY_ACCESS = 2, 4, 8, (1 << 15) - 1
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

_libc = ctypes.CDLL(None, use_errno=True)


def _check(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def enter_namespaces(user: bool) -> None:
    """Leave the network, the processes, the mounts and the IPC of the machine; with `user`, as its own root. Raises OSError."""
    uid, gid = os.geteuid(), os.getegid()
    result = _libc.unshare(_NEW_REST | (_NEW_USER if user else 0))
    if result < 0 and ctypes.get_errno() == errno.ENOSPC:  # whose text speaks of a full disk
        raise OSError("unshare: no more namespaces are allowed (`sysctl user.max_user_namespaces` and its like)")
    _check("unshare", result)
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)


def enter_root(root: str, libraries: Sequence[str], size: int) -> None:
    """Make the root a read-only one of libraries, three devices, and /tmp in memory of `size` bytes. Raises OSError."""

    def mount(
        source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None
    ) -> None:
        words = [part and os.fsencode(part) for part in (source, target, kind)]
        _check("mount", _libc.mount(*words, ctypes.c_ulong(flags), data and data.encode()))

    def lock(path: str, further: int = 0) -> None:
        attributes = struct.pack("=4Q", _READ_ONLY | _NO_SUID | _NO_DEVICES, 0, 0, 0)
        _check("mount_setattr", _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), further, attributes, 32))

    mount(None, "/", flags=_RECURSIVE | _PRIVATE)
    mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEVICES, "size=1m,nr_inodes=1024,mode=755")
    for path in libraries:
        inside = root + path
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), inside)
            continue
        os.makedirs(inside, exist_ok=True)
        mount(path, inside, flags=_BIND | _RECURSIVE)
        lock(inside, _AT_RECURSIVE)
    os.mkdir(f"{root}/dev")
    for device in _DEVICES:
        with open(root + device, "wb"):
            mount(device, root + device, flags=_BIND)
    os.makedirs(f"{root}/tmp", exist_ok=True)
    mount("tmpfs", f"{root}/tmp", "tmpfs", _NO_SUID | _NO_DEVICES, f"size={size},nr_inodes=4096,mode=1777")
    lock(root)
    os.chdir(root)
    _check("pivot_root", _libc.pivot_root(b".", b"."))
    _check("umount", _libc.umount2(b".", _DETACH))
    os.chdir("/tmp")


def read_only(libraries: Sequence[str]) -> None:
    """Let nothing be read but libraries and three devices, and nothing be written, with Landlock. Raises OSError."""
    version = _libc.syscall(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION)
    if version < _LANDLOCK_OLDEST:
        raise OSError(f"Landlock is missing or older than that of Linux 6.2 (version {max(version, 0)})")
    rules = _check("Landlock", _libc.syscall(_LANDLOCK_CREATE, struct.pack("=Q", _EVERY_ACCESS), 8, 0))
    rights = dict.fromkeys(libraries, _READ_FILE | _READ_FOLDER) | dict.fromkeys(_DEVICES, _READ_FILE | _WRITE_FILE)
    for path, right in rights.items():
        place = os.open(path, os.O_PATH)
        _check("Landlock", _libc.syscall(_LANDLOCK_ADD, rules, _BENEATH, struct.pack("=Qi", right, place), 0))
        os.close(place)
    _check("prctl", _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check("Landlock", _libc.syscall(_LANDLOCK_RESTRICT, rules, 0))
    os.close(rules)


def drop_rights(uid: int, limits: Mapping[str, int]) -> None:
    """Set limits by their names in `resource`, and become user `uid` (0 to stay who one is) without rights, for good."""
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    for capability in range(64):
        _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # an unprivileged process may not, and need not
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _check("capset", _libc.capset((ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)()))
    _check("prctl", _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check("prctl", _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0))
    _check("prctl", _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    # What is left of a huge page keeps all of it, and no limit counts that.
    _check("prctl", _libc.prctl(_SET_THP_DISABLE, 1, 0, 0, 0))


def filter_calls(program: bytes) -> None:
    """Allow no system calls but those of this filter, from `gym_rewards.sandbox.seccomp`. Raises OSError."""
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    _check("seccomp", _libc.prctl(_SET_SECCOMP, _FILTER, head, 0, 0))
