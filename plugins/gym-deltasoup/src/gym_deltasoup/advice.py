"""What an unknown key of a recipe may have meant: the files of `gym merge` are no recipes."""

from __future__ import annotations

#: Keys that only files of `gym merge` have, and those of mergekit, which it reads too.
KEYS = frozenset({"merger", "inputs", "hostile", "byzantine_threshold", "merge_method"})


def advise(key: str, near: str = "") -> tuple[str, str] | None:
    """Return what such a key belongs to and what to do; None for any other, whatever right key is `near`."""
    if key not in KEYS:
        return None
    return "belongs to a file of `gym merge`, and this is read as a recipe", "run `gym merge FILE`"
