r"""Reading numbers as people and models write them: `1,234.50`, `-3/4`, `2 1/2`, `$\frac{1}{2}$`, `5\%`, `3\times 10^{8}`.

Every pattern here takes linear time, and what is too long to be a number is none.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from itertools import takewhile

_LONGEST = 400  #: characters that a number may have, unit included
_LARGEST_EXPONENT = 400
_MULTIPLES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_MINUS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"), "-")
_SPACES = re.compile(r"\\[,;:! ]|[~\u00a0\u2009\u202f]")
_DROPPED = re.compile(r"\\(?:left|right|displaystyle|big|Big)(?![a-zA-Z])|\\[()\[\]]|(?<!\\)\$")
_CURRENCY = re.compile(r"\\\$|[$\u20ac\u00a3\u00a5\u20b9]|\b(?:USD|EUR|GBP)\b")
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_FRACTION = re.compile(
    r"\\[dtc]?frac\s*(?:\{\s*([-+]?[\d.,]{1,100})\s*\}|(\d))\s*(?:\{\s*([-+]?[\d.,]{1,100})\s*\}|(\d))"
)
_POWER = re.compile(r"\s*(?:\\times|\\cdot|\u00d7|\*)\s*10\s*(?:\^|\*\*)\s*\{?\s*([-+]?\d{1,4})\s*\}?")
_DECIMAL = (
    r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d{1,3}(?: \d{3})+(?![\d/])(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?"
)
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<whole>\d+)\s+(?=\d+\s*/))?(?P<value>{_DECIMAL})(?:\s*/\s*(?P<below>[-+]?{_DECIMAL}))?"
)
_RAISED = r"(?:\^\{?[23]\}?|[\u00b2\u00b3])?"
_UNIT = re.compile(
    r"\s*(?:%|\u00b0|\^?\\circ|\^\{\\circ\})?\s*"
    r"(?:(?P<words>[^\W\d_\u00b2\u00b3\u00b9\u2070-\u2099][^\d\\=+*/^_{}()\[\]<>,;:?!\u00b2\u00b3\u00b9\u2070-\u2099]*)"
    rf"{_RAISED})?\s*(?:/\s*(?P<per>[^\W\d_]{{1,20}}){_RAISED})?\s*"
)
#: Words, operations, functions and products of letters that stand for numbers.
_NO_UNIT = re.compile(
    r"(?:or|and|to|pi|sqrt|plus|minus|times|over|mod|squared|cubed|factorial|(?:log|ln|sin|cos|tan)[xyzn]?"
    r"|[nie]|d?[xyz]|dt|[xyz]{2,3}|abc?|bc|mn|pq|uv)\b|[\u03c0\u221e]",
    re.IGNORECASE,
)
_IN_TEXT = re.compile(
    rf"(?<![\w.)\]}}])-?(?:\\\$|[$\u20ac\u00a3\u00a5])?-?{_DECIMAL}(?:\s?/\s?-?\d+(?:\.\d+)?)?|(?<=[\w.)\]}}]){_DECIMAL}"
)


def readings(text: str) -> set[Fraction]:
    """Return what a text may mean as a number: nothing where it is none, two values for a percentage (`50%` is 50 and 1/2)."""
    text = plain(text)
    if not text or len(text) > _LONGEST:
        return set()
    text = _POWER.sub(r"e\1", _CURRENCY.sub("", text).replace("\\%", "%")).strip().rstrip(".")
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    text = re.sub(r"^([-+]?)\s*\(([^()]*)\)", r"\1\2", text)
    found = _NUMBER.match(text)
    if found is None:
        return set()
    unit = _UNIT.fullmatch(text, found.end())
    if unit is None:
        return set()
    words = (unit["words"] or "").strip()
    glued = found.end() < len(text) and text[found.end()].isalpha() and len(words) == 1
    if glued or _NO_UNIT.match(words) or (unit["per"] and not _rate(words, unit["per"])):
        return set()
    value = _value(found)
    if value is None:
        return set()
    for word in takewhile(_MULTIPLES.__contains__, words.lower().split()):
        value *= _MULTIPLES[word]
    return {value, value / 100} if "%" in unit[0] else {value}


def _rate(words: str, per: str) -> bool:
    """Return whether `words/per` is a unit, as `km/h`, `m/s` and, behind a price, `/lb` are, and no quotient of variables."""
    known = len(words) > 1 or (words, per) == ("m", "s") or (not words and len(per) > 1)
    return known and not _NO_UNIT.match(per)


def _value(found: re.Match[str]) -> Fraction | None:
    above, below = _fraction(found["value"]), _fraction(found["below"] or "1")
    if above is None or not below:
        return None
    value = Fraction(found["whole"] or 0) + above / below
    return -value if found["sign"] == "-" else value


def _fraction(text: str) -> Fraction | None:
    text = re.sub(r"[, ]", "", text)
    digits, _, exponent = text.lower().partition("e")
    if abs(int(exponent or 0)) > _LARGEST_EXPONENT:
        return None
    return Fraction(digits) * Fraction(10) ** int(exponent or 0)


def plain(text: str) -> str:
    r"""Return a text with digits, minus signs and spaces of ASCII, and without what LaTeX adds for looks."""
    text = _ascii(text).replace("{,}", ",")
    text = _SPACES.sub(" ", _DROPPED.sub("", text))
    text = _TEXT.sub(r" \1 ", text)
    text = _FRACTION.sub(lambda part: f" {part[1] or part[2]}/{part[3] or part[4]} ", text)
    text = re.sub(r"^(\s*[-+])\s+", r"\1", text)
    return text.strip().removeprefix("{").removesuffix("}").strip() if text.strip().startswith("{") else text.strip()


def numbers_in(text: str) -> list[str]:
    """Return the texts of all numbers that a text mentions, in order."""
    return _IN_TEXT.findall(_ascii(text))


def _ascii(text: str) -> str:
    if text.isascii():
        return text
    return "".join(map(_letter, text.translate(_MINUS)))


def _letter(letter: str) -> str:
    if letter.isascii():
        return letter
    digit = unicodedata.decimal(letter, None)
    if digit is not None:
        return str(digit)
    numeric = unicodedata.numeric(letter, None)
    if unicodedata.decomposition(letter).startswith("<fraction>") and numeric is not None:
        part = Fraction(numeric).limit_denominator(10)
        return f" {part.numerator}/{part.denominator} "
    return letter
