"""How OpenMP threads wait for work."""

from __future__ import annotations

import os


def wait_passively() -> None:
    """Have idle threads sleep, unless the environment says otherwise; to be called before torch is imported.

    OpenMP reads the setting on import. Threads would otherwise spin, and on a machine with other processes a small model
    takes ten times as long. Results are the same.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
