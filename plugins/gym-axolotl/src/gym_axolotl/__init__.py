"""Files of axolotl for Gym: tables of its keys, and what reads a file by them."""

from __future__ import annotations

from gym_core.lazy import lazily

__all__, __getattr__, __dir__ = lazily(__name__, {"gym_axolotl.table": "Keys"})
