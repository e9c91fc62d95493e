"""How alike two short texts are."""

from __future__ import annotations

import re
import unicodedata

ALIKE = 0.8  #: from here on two experiences say the same
#: Letters without a form, which say how those beside them are written: Persian and Hindi need them.
JOINERS = "\u200c\u200d"
_JOINED = str.maketrans("", "", JOINERS)

#: Letters of scripts without spaces between words, or with endings behind them: each stands for a word.
_ALONE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"  # Japanese, Chinese, Korean
)
_WORD = re.compile(rf"[{_ALONE}]|(?:(?![{_ALONE}])[^\W_])+(?:[.,]\d+)*")


def words(text: str) -> list[str]:
    """Return the words and numbers of a text, in small letters."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold().translate(_JOINED))


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
