"""The side of the program: it runs, then its functions are called from the other side."""

from __future__ import annotations

import builtins
import operator
import sys
from itertools import islice

from .channel import channel, pack, receive, send, unpack
from .program_loader import execute

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import, and this starts for every test
    from collections.abc import Callable
    from typing import Any

_MOST = 1_000_000  #: items that an iterator of the program may yield


def serve(source: str) -> None:
    """Run the program, say which names it has, then answer calls until the other side ends."""
    other = channel()
    sys.argv = ["answer.py"]
    module = execute(source, "answer")  # not `__main__`: what a program does when it is run is not tested here
    kept: list[Any] = [module]

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    actions: dict[str, Callable[..., Any]] = {
        "call": lambda target, args, options: target(*args, **options),
        "attribute": getattr,
        "items": lambda target: list(islice(iter(target), _MOST)),
        "item": lambda target, key: target[key],
        "lazy": lambda target: hasattr(type(target), "__next__"),
        "next": next,
        "instance": lambda target, value: isinstance(value, target),
        "length": len,
        "truth": bool,
        "set": setattr,
        "set item": operator.setitem,
        "delete item": operator.delitem,
        "operate": lambda target, name, *others: getattr(operator, name)(target, *others),
        "text": str,
        "repr": repr,
    }
    send(other, sorted(name for name in vars(module) if not name.startswith("__")))
    while True:
        number, action, packed = receive(other)
        arguments = unpack(packed, kept.__getitem__)
        try:
            result = actions[action](kept[number], *arguments)
            after = pack(arguments, keep)
            send(other, ["returned", pack(result, keep), None if after == packed else after])
        except Exception as error:  # it is the test that says what an error means
            kinds = [kind.__name__ for kind in type(error).__mro__ if kind is getattr(builtins, kind.__name__, None)]
            send(other, ["raised", kinds, str(error)[:1000], pack(list(error.args), keep)])
