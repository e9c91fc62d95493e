"""Between a program and a test of it, each in a sandbox of its own: calls one way, plain data the other.

The text of this file is what both run; it imports the standard library alone. `serve` runs the program, `examine` the test.
What the program returns arrives as data: its objects stay behind as handles that compare unequal to everything else,
so no class of the program can claim to equal what was expected, and what it prints or how it ends is no verdict.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import io
import json
import os
import sys
import types
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import, and this starts for every test
    from collections.abc import Callable, Iterator
    from typing import Any

_MOST = 1_000_000  #: items that an iterator of the program may yield
_KINDS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset, "list": list}


def _pack(value: Any, keep: Callable[[Any], Any]) -> Any:
    """Return JSON for plain data; `keep` is asked for everything else."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return {"int": hex(value)}
    if isinstance(value, float):
        return {"float": float.hex(value)}
    if isinstance(value, complex):
        return {"complex": [float.hex(value.real), float.hex(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, dict):
        return {"dict": [[_pack(key, keep), _pack(item, keep)] for key, item in value.items()]}
    for name, kind in _KINDS.items():
        if isinstance(value, kind):  # type: ignore[arg-type]
            return {name: [_pack(item, keep) for item in value]}
    return {"handle": keep(value)}


def _unpack(value: Any, handle: Callable[[Any], Any]) -> Any:
    """Return what `_pack` wrote down."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in _KINDS:
        return _KINDS[kind](_unpack(item, handle) for item in content)
    if kind == "dict":
        return {_unpack(key, handle): _unpack(item, handle) for key, item in content}
    if kind == "complex":
        return complex(*(float.fromhex(part) for part in content))
    plain = {"int": lambda text: int(text, 16), "float": float.fromhex, "bytes": bytes.fromhex, "handle": handle}
    return plain[kind](content)


def _channel() -> tuple[Any, Any]:
    """Take standard input and output for the channel; what is printed from here on goes nowhere."""
    reader, writer = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    sys.stdin, sys.stdout = io.StringIO(), io.TextIOWrapper(io.BytesIO())
    return reader, writer


def _send(channel: tuple[Any, Any], message: Any) -> None:
    channel[1].write(json.dumps(message) + "\n")
    channel[1].flush()


def _receive(channel: tuple[Any, Any]) -> Any:
    line = channel[0].readline()
    if not line.endswith("\n"):
        raise EOFError("the other side has ended")
    return json.loads(line)


def serve(source: str) -> None:
    """Run the program, say which names it has, then answer calls until the other side ends."""
    channel = _channel()
    module = types.ModuleType("answer")  # not `__main__`: what a program does when it is run is not tested here
    sys.modules["answer"], sys.argv = module, ["answer.py"]
    exec(compile(source, "answer.py", "exec"), module.__dict__)  # noqa: S102 - what this process is for
    kept: list[Any] = [module]

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    actions: dict[str, Callable[..., Any]] = {
        "call": lambda target, args, options: target(*args, **options),
        "attribute": getattr,
        "items": lambda target: list(islice(iter(target), _MOST)),
        "item": lambda target, key: target[key],
        "length": len,
        "text": str,
        "repr": repr,
    }
    _send(channel, sorted(name for name in vars(module) if not name.startswith("__")))
    while True:
        number, action, packed = _receive(channel)
        arguments = _unpack(packed, kept.__getitem__)
        try:
            result = actions[action](kept[number], *arguments)
            _send(channel, ["returned", _pack(result, keep), _pack(arguments, keep)])
        except Exception as error:  # it is the test that says what an error means
            _send(channel, ["raised", type(error).__name__, str(error)[:1000]])


class _Remote:
    """An object of the program, seen from the test."""

    def __init__(self, channel: tuple[Any, Any], number: int) -> None:
        self._channel, self._number = channel, number

    def _ask(self, action: str, *arguments: Any) -> Any:
        def number(value: Any) -> int:
            if not isinstance(value, _Remote):
                raise TypeError(f"a test cannot hand a {type(value).__name__} to the program, only data")
            return value._number

        _send(self._channel, [self._number, action, _pack(list(arguments), number)])
        said, *content = _receive(self._channel)
        if said != "returned":
            kind = getattr(builtins, str(content[0]), None)
            # One that ends a loop of the test would make `all(...)` true.
            known = isinstance(kind, type) and issubclass(kind, Exception) and kind is not StopIteration
            raise (kind if known else RuntimeError)(content[1])  # type: ignore[misc]
        result, after = (_unpack(part, lambda number: _Remote(self._channel, number)) for part in content)
        if action == "call":
            _write_back(arguments[0], after[0])
        return result

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._ask("call", list(args), options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("attribute", name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ask("items"))

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __len__(self) -> int:
        return int(self._ask("length"))

    def __bool__(self) -> bool:
        return True

    def __contains__(self, item: Any) -> bool:
        return item in self._ask("items")  # compared here, not by the program

    def __str__(self) -> str:
        return str(self._ask("text"))

    def __repr__(self) -> str:
        return str(self._ask("repr"))


def _write_back(given: list[Any], after: list[Any]) -> None:
    """Let a test see that the program changed an argument in place."""
    for before, now in zip(given, after, strict=True):
        if isinstance(before, list) and isinstance(now, list):
            before[:] = now
        elif isinstance(before, dict | set) and isinstance(now, type(before)):
            before.clear()
            before.update(now)


def examine(test: str) -> None:
    """Run a test; it passes when this returns.

    Names that the test uses come from the program, except those of Python itself and of its library: a program cannot
    bring its own `all` or `math`.
    """
    channel = _channel()
    tree = ast.parse(test)
    offered = set(_receive(channel))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names: dict[str, Any] = {"__name__": "test"}
    for name in sorted(used - set(dir(builtins))):
        if name in sys.stdlib_module_names:
            names[name] = importlib.import_module(name)
        elif name in offered:
            names[name] = _Remote(channel, 0)._ask("attribute", name)
    exec(compile(tree, "test.py", "exec"), names)  # noqa: S102 - the row's own test
