"""The side of the check: objects of the program, which are asked over the channel and decide nothing here.

What the program returns arrives as data. Its objects stay behind as handles that compare unequal to everything else,
so no class of the program can claim to equal what was expected, and what it prints or how it ends is no verdict.
"""

from __future__ import annotations

import builtins
import os
from contextlib import suppress

from .channel import channel, pack, receive, send, unpack
from .supervisor import FAILED

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import, and this starts for every test
    from collections.abc import Callable, Iterator
    from typing import Any


class Program:
    """The program on the other side of the channel."""

    def __init__(self) -> None:
        self._channel = channel()
        self.names = frozenset(map(str, self._receive()))  #: that it defines
        self.asked = 0  #: calls, attributes, items: what a check that checks something has asked for
        self.refused = False  #: whether the check wanted to hand it what cannot be handed over

    def _receive(self) -> Any:
        try:
            return receive(self._channel)
        except EOFError:
            os._exit(FAILED)  # an exception could be what the test waits for

    def get(self, name: str) -> Any:
        """Return what it has under a name: data, or an object to ask."""
        value = self.ask(0, "attribute", name)
        self.asked -= 1  # to name is not yet to ask
        return value

    def ask(self, number: int, action: str, *arguments: Any) -> Any:
        """Do something with object `number` of the program and return what comes of it; raises what the program raises."""

        def handle(value: Any) -> int:
            if not isinstance(value, _Remote):
                self.refused = True
                raise TypeError(f"a test cannot hand a {type(value).__name__} to the program, only data")
            return value._number

        self.asked += 1
        send(self._channel, [number, action, pack(list(arguments), handle)])
        said, *content = self._receive()
        if said != "returned":
            kinds, text, packed = content
            raise _error(kinds, str(text), unpack(packed, self._object), may_end=action == "next")
        result, after = (unpack(part, self._object) for part in content)
        if action == "call" and after is not None:
            _write_back(arguments[0], after[0])
        return result

    def _object(self, number: int) -> _Remote:
        return _Remote(self, number)


class _Remote:
    """An object of the program, seen from the test."""

    def __init__(self, program: Program, number: int) -> None:
        vars(self).update(_program=program, _number=number, _mixed=False)

    def _own(self) -> _Remote:
        """Return itself. Raises TypeError for what the program made of itself and data of the test: it could be a difference."""
        if self._mixed:
            raise TypeError("the result of an operation with an object of the program says nothing of the object")
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._program.ask(self._number, "call", list(args), options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.ask(self._number, "attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._program.ask(self._number, "set", name, value)

    def __iter__(self) -> Iterator[Any]:
        if self._own()._program.ask(self._number, "lazy"):  # it may have no end
            return self
        return iter(self._program.ask(self._number, "items"))

    def __next__(self) -> Any:
        return self._program.ask(self._number, "next")

    def __getitem__(self, key: Any) -> Any:
        return self._program.ask(self._number, "item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._program.ask(self._number, "set item", key, value)

    def __delitem__(self, key: Any) -> None:
        self._program.ask(self._number, "delete item", key)

    def __len__(self) -> int:
        return int(self._own()._program.ask(self._number, "length"))

    def __bool__(self) -> bool:
        return bool(self._own()._program.ask(self._number, "truth"))

    def __contains__(self, item: Any) -> bool:
        return item in self._program.ask(self._number, "items")  # compared here, not by the program

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, _Remote) and bool(self._program.ask(self._number, "instance", value))

    def __str__(self) -> str:
        return str(self._program.ask(self._number, "text"))

    def __repr__(self) -> str:
        return str(self._program.ask(self._number, "repr"))


def _operation(name: str) -> Callable[..., Any]:
    def operate(self: _Remote, *others: Any) -> Any:
        result = self._program.ask(self._number, "operate", name, *others)
        if self._mixed or any(not isinstance(other, _Remote) or other._mixed for other in others):
            if isinstance(result, _Remote):
                vars(result).update(_mixed=True)
            else:
                raise TypeError("an object of the program cannot be subtracted from data: it would judge itself")
        return result

    return operate


# What makes something new; comparisons are missing, since the program would be judge in its own cause. So it would be where
# a test asks how far it is from a number: what it makes of data is an object that has parts, and is no amount.
for _name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "neg", "abs"):
    setattr(_Remote, f"__{_name.strip('_')}__", _operation(_name))


def _error(kinds: list[str], text: str, args: list[Any], may_end: bool) -> Exception:
    """Return an exception of the first of these kinds that there is, with this text; `may_end` permits StopIteration."""
    for name in kinds:
        kind = getattr(builtins, str(name), None)
        # One that ends a loop of the test would make `all(...)` true.
        ends = (kind is StopIteration and not may_end) or kind is StopAsyncIteration
        if isinstance(kind, type) and issubclass(kind, Exception) and not ends:
            for given in (args, [text]):
                with suppress(TypeError):
                    # some kinds want other arguments than a text, and those of a class of the program
                    error = kind(*given)
                    if str(error) == text or given is not args:
                        return error
    return Exception(text)


def _write_back(given: list[Any], after: list[Any]) -> None:
    """Let a test see that the program changed an argument in place."""
    for before, now in zip(given, after, strict=True):
        if isinstance(before, list) and isinstance(now, list):
            before[:] = now
        elif isinstance(before, dict | set) and isinstance(now, type(before)):
            before.clear()
            before.update(now)
