"""Keys of a dialect as tables: what a key chooses or fills, how it is converted, and what is refused by name."""

from __future__ import annotations

from gym_core.lazy import lazily

__all__, __getattr__, __dir__ = lazily(
    __name__,
    {
        "gym_dialect.placing": "Dialect place take_apart",
        "gym_dialect.stated": "Stated",
        "gym_dialect.table": "Choice Key Keys",
    },
)
