"""Keys that choose nothing and fill no option: what they may say, and what is to be said of any other value."""

from __future__ import annotations

from gym_dialect.stated import Stated
from gym_llamafactory.stated.devices import DEVICES
from gym_llamafactory.stated.media import MEDIA
from gym_llamafactory.stated.numbers import NUMBERS
from gym_llamafactory.stated.unread import UNREAD

__all__ = ["STATED", "Stated"]
STATED: dict[str, Stated] = {**UNREAD, **NUMBERS, **DEVICES, **MEDIA}
