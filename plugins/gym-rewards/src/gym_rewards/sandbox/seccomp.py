"""A filter of system calls (seccomp) in the kernel's own language, classic BPF: what is not allowed does not exist.

The kernel asks the filter before each call of a program, and nothing can take it off again. Source: `seccomp(2)`, and
`Documentation/userspace-api/seccomp_filter.rst` of Linux.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gym_core.errors import GymError
from gym_rewards.sandbox.syscalls import ARCHITECTURES, NUMBERS

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  #: bit in the numbers of x86_64's other, 32-bit table of calls
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  #: offsets in `struct seccomp_data`


@dataclass(frozen=True)
class _Argument:
    """One argument of a call, of which only the low 32 bits count for the kernel too, must be one of these values."""

    place: int
    values: Sequence[int]
    mask: int = 0xFFFFFFFF


_ONLY: dict[str, Sequence[_Argument]] = {
    # A thread as the C libraries start it, and so no process and no namespace: VM, FS, FILES, SIGHAND, THREAD, SYSVSEM,
    # SETTLS, PARENT_SETTID, CHILD_CLEARTID; the bit that is masked out means nothing any more.
    "clone": [_Argument(0, [0x3D0F00], mask=0xFFFFFFFF ^ 0x400000)],
    # Descriptors and their flags; neither owners, to whom signals go, nor locks and the size of pipes, which hold memory.
    "fcntl": [_Argument(1, [0, 1, 2, 3, 4, 1030])],
    # Whether it is a terminal (and how wide), what can be read, blocking, inheritance.
    "ioctl": [_Argument(1, [0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451])],
    # Private memory alone: shared memory lives on when most of it is unmapped, and is then in no process's count.
    "mmap": [_Argument(3, [2], mask=0xF)],
    "prctl": [_Argument(0, [15, 16])],  # the name of a thread
    "prlimit64": [_Argument(0, [0])],  # one's own
    # A connected stream of AF_UNIX, through which asyncio wakes itself; datagrams could be sent elsewhere.
    "socketpair": [_Argument(0, [1]), _Argument(1, [1], mask=0xFFFFFFFF ^ 0x80800)],
}


def program(threads: bool = True, machine: str = "") -> bytes:
    """Return the filter for a machine, by default this one: an array of `struct sock_filter`.

    Without `threads` none can be started. Raises GymError for an architecture whose calls are not known.
    """
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise GymError(
            f"the system calls of {machine} are not known", fix=f"run on one of {', '.join(ARCHITECTURES)} with Linux"
        )
    numbers = {name: both[ARCHITECTURES.index(machine)] for name, both in NUMBERS.items()}
    code = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, _AUDIT[machine]), (_RETURN, 0, 0, _KILL)]
    code += [(_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for name, number in numbers.items():
        if number is not None and (threads or name != "clone"):
            allowed = _conditions(_ONLY[name]) if name in _ONLY else [(_RETURN, 0, 0, _ALLOW)]
            code += [(_EQUAL, 0, len(allowed), number), *allowed]
    code.append((_RETURN, 0, 0, _ERROR | errno.ENOSYS))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _conditions(arguments: Sequence[_Argument]) -> list[tuple[int, int, int, int]]:
    code = []
    for only in arguments:
        code += [(_LOAD, 0, 0, _ARGUMENTS + 8 * only.place), (_AND, 0, 0, only.mask)]
        code += [(_EQUAL, len(only.values) - place, 0, value) for place, value in enumerate(only.values)]
        code.append((_RETURN, 0, 0, _ERROR | errno.ENOSYS))
    return [*code, (_RETURN, 0, 0, _ALLOW)]
