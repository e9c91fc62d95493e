"""Bodies of requests: strict JSON of bounded depth, and nothing that is no text."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, NoReturn

from gym_serve.api.errors import HTTPProblem

DEPTH = 64  #: deepest nesting of objects and lists
DIGITS = 400  #: longest number


def parse(body: bytes) -> dict[str, Any]:
    """Return the object that a body holds. Raises HTTPProblem where it is none, or holds what JSON does not have."""
    try:
        text = body.decode()
        found = json.loads(
            text, parse_constant=_constant, parse_int=_integer, parse_float=_float, object_pairs_hook=_distinct
        )
        if "\\u" in text:  # lone surrogates are valid there, and no text
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeError as error:
        raise HTTPProblem(400, "the body is not UTF-8 text", code="invalid_utf8") from error
    except json.JSONDecodeError as error:
        raise _invalid(f"{error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise _invalid(f"it is nested more than {DEPTH} deep") from error
    if not isinstance(found, dict):
        raise _invalid("it is no object")
    _shallow(found)
    return found


def _shallow(found: Any) -> None:
    level = [found]
    for _ in range(DEPTH):
        inner = [each for each in level if isinstance(each, dict | list)]
        level = [child for each in inner for child in (each.values() if isinstance(each, dict) else each)]
        if not level:
            return
    raise _invalid(f"it is nested more than {DEPTH} deep")


def _invalid(why: str) -> HTTPProblem:
    return HTTPProblem(400, f"the body is not JSON that a request can have: {why}", code="invalid_json")


def _constant(name: str) -> NoReturn:
    raise _invalid(f"{name} is no number")


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise _invalid("a number is too long")
    return int(digits)


def _float(digits: str) -> float:
    if len(digits) > DIGITS or not math.isfinite(number := float(digits)):
        raise _invalid("a number is too long")
    return number


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _invalid(f"the key `{twice[:100]}` is there twice")
    return found
