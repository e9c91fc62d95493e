"""How the threads of torch wait for each other."""

from __future__ import annotations

import os


def wait_passively() -> None:
    """Have them sleep while they wait, unless the environment says otherwise; to be called before torch is imported.

    OpenMP reads it then. Threads would otherwise spin, and on a machine with other work to do a small model takes ten times as
    long. It changes no number.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
