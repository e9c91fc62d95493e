"""Imports peft without what it imports only because it is installed."""

from __future__ import annotations

import sys

from gym_torch.lean_imports import hidden


def import_peft() -> None:
    """Import peft without hqq, and with it torch's compiler, unless they are loaded; to be called before all that imports it.

    Models that are quantized by hqq have linear layers of Gym's, so peft needs to know none of its. What it found on import it
    keeps: asked again, it would find hqq, and look for layers that it has not imported.
    """
    if "peft" in sys.modules:
        return
    with hidden("hqq"):
        import peft  # noqa: F401
