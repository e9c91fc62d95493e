"""The kind of axolotl's tables."""

from __future__ import annotations

from typing import ClassVar

from gym_dialect import table

KIND = "axolotl_keys"


class Keys(table.Keys):
    """Keys of axolotl. A file that has `base_model` is read by all installed tables together.

    A subclass has no options, but rows as data: `choices`, of `gym_dialect.Choice`, are keys that choose components, and
    `keys`, of `gym_dialect.Key`, fill options of components, this package's or others'. `build()` returns a
    `gym_dialect.table.Table`.
    """

    kind: ClassVar[str] = KIND
