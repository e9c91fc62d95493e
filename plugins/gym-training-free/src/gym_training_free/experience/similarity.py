"""How alike two short texts are."""

from __future__ import annotations

import re
import unicodedata

ALIKE = 0.8  #: from here on two experiences say the same


def words(text: str) -> list[str]:
    """Return the words and numbers of a text, in small letters."""
    return re.findall(r"[^\W_]+(?:[.,]\d+)*", unicodedata.normalize("NFKC", text).casefold())


def trigrams(text: str) -> frozenset[str]:
    """Return the runs of three letters of a text, of its words with a space between and around them."""
    plain = f" {' '.join(words(text))} "
    return frozenset(plain[start : start + 3] for start in range(len(plain) - 2))


def similarity(one: str, other: str) -> float:
    """Return the Jaccard index of the trigrams of two texts, from 0 to 1."""
    first, second = trigrams(one), trigrams(other)
    return len(first & second) / len(first | second) if first | second else 1.0


def alike(one: str, other: str) -> bool:
    """Whether two texts say the same."""
    return similarity(one, other) >= ALIKE
