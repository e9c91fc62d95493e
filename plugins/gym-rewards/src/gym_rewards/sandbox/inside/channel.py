"""Between a program and a check of it, each in a sandbox of its own: calls one way, plain data the other."""

from __future__ import annotations

import importlib
import io
import json
import operator
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import, and this starts for every test
    from collections.abc import Callable, Sequence
    from typing import Any

_KINDS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset, "list": list}
#: By name: the module of a type, what makes one of its parts, and the parts.
_VALUES: dict[str, tuple[str, str, Callable[[Any], Sequence[Any]]]] = {
    "range": ("builtins", "range", lambda value: [value.start, value.stop, value.step]),
    "deque": ("collections", "deque", lambda value: [list(value), value.maxlen]),
    "Decimal": ("decimal", "Decimal", lambda value: [str(value)]),
    "Fraction": ("fractions", "Fraction", lambda value: [value.numerator, value.denominator]),
    "date": ("datetime", "date.fromisoformat", lambda value: [value.isoformat()]),
    "datetime": ("datetime", "datetime.fromisoformat", lambda value: [value.isoformat()]),
    "time": ("datetime", "time.fromisoformat", lambda value: [value.isoformat()]),
    "timedelta": ("datetime", "timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
}
_LARGE = 2**63  #: whole numbers from here on are written in a form that Python reads at any length


def pack(value: Any, keep: Callable[[Any], Any]) -> Any:
    """Return JSON for plain data; `keep` is asked for everything else."""
    if value is None or isinstance(value, bool | str | float) or (isinstance(value, int) and -_LARGE < value < _LARGE):
        return value
    if isinstance(value, int):
        return {"int": hex(value)}
    if isinstance(value, complex):
        return {"complex": [float.hex(value.real), float.hex(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, dict):
        return {"dict": [[pack(key, keep), pack(item, keep)] for key, item in value.items()]}
    for name, kind in _KINDS.items():
        if isinstance(value, kind):  # type: ignore[arg-type]
            return {name: [pack(item, keep) for item in value]}
    name = type(value).__name__
    if name in _VALUES:
        module, _, parts = _VALUES[name]
        if type(value) is getattr(sys.modules.get(module), name, None):  # who has one has imported the module
            return {name: [pack(part, keep) for part in parts(value)]}
    return {"handle": keep(value)}


def unpack(value: Any, handle: Callable[[Any], Any]) -> Any:
    """Return what `pack` wrote down."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in _KINDS:
        return _KINDS[kind](unpack(item, handle) for item in content)
    if kind in _VALUES:
        module, maker, _ = _VALUES[kind]
        return operator.attrgetter(maker)(importlib.import_module(module))(*(unpack(item, handle) for item in content))
    if kind == "dict":
        return {unpack(key, handle): unpack(item, handle) for key, item in content}
    if kind == "complex":
        return complex(*(float.fromhex(part) for part in content))
    plain = {"int": lambda text: int(text, 16), "bytes": bytes.fromhex, "handle": handle}
    return plain[kind](content)


def channel() -> tuple[Any, Any]:
    """Take standard input and output for the channel; what is printed from here on goes nowhere."""
    reader, writer = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    sys.stdin, sys.stdout = io.StringIO(), io.TextIOWrapper(io.BytesIO())
    return reader, writer


def send(channel: tuple[Any, Any], message: Any) -> None:
    """Write one line of JSON."""
    channel[1].write(json.dumps(message) + "\n")
    channel[1].flush()


def receive(channel: tuple[Any, Any]) -> Any:
    """Read one. Raises EOFError where the other side has ended, ValueError for what is no JSON."""
    line = channel[0].readline()
    if not line.endswith("\n"):
        raise EOFError("the other side has ended")
    return json.loads(line)
