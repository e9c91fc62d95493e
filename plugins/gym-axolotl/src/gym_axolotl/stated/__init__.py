"""Keys that choose nothing and fill no option: what they may say, and what is to be said of any other value."""

from __future__ import annotations

from gym_axolotl.stated.numbers import NUMBERS
from gym_axolotl.stated.unread import UNREAD
from gym_dialect import Stated

__all__ = ["STATED"]
STATED: dict[str, Stated] = {**UNREAD, **NUMBERS}
