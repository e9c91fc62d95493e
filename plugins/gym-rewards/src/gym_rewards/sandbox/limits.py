"""What a program in a sandbox may use, how it is confined, and how it may end."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """One way to confine a program; `gym_rewards.sandbox.inside.confinement` carries it out."""

    name: str
    namespaces: bool = False
    user_namespace: bool = False
    own_user: bool = False

    @property
    def threads(self) -> bool:
        """Whether threads can be counted, and so be allowed: the kernel counts by user, and never those of root."""
        return self.own_user or (self.user_namespace and os.geteuid() != 0)


#: The ways to reach each level, the better ones first; some are for root alone.
LEVELS = (
    Level("namespaces", namespaces=True, own_user=True),
    Level("namespaces", namespaces=True, user_namespace=True),
    Level("landlock", own_user=True),
    Level("landlock"),
)


@dataclass(frozen=True)
class Limits:
    """What a program may use. All that it holds in memory is `memory`, `disk` and some MiB of the kernel's."""

    seconds: float = 5.0  #: on the clock; of processor time a second more
    memory: int = 512  #: MiB of address space of its one process
    threads: int = 4  #: with the first
    output: int = 1  #: MiB of any one file, standard output too
    disk: int = 32  #: MiB of all files


class Verdict(enum.Enum):
    """How a program or the check of it ended."""

    PASSED = enum.auto()  #: with status 0; or the check found nothing wrong
    FAILED = enum.auto()
    LATE = enum.auto()  #: ended at its deadline
    UNCHECKED = enum.auto()  #: the check did not ask the program for anything, or could not
