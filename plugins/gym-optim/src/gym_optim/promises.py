"""What a component says of itself and what it builds is held against what its kind promises, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from gym_core.component import Component
from gym_core.errors import PluginError
from gym_core.sections import SECTION_OF

T = TypeVar("T")
#: What a kind may ask a component to say, as it is annotated there: a truth, a number or a text, or None where it may be none.
ANSWERS: dict[str, Any] = {"bool": bool, "int": int, "float": float | int, "str": str}
ANSWERS |= {f"{name} | None": classes | None for name, classes in ANSWERS.items()}


def promised(found: object, wanted: type[T], by: object, key: str = "") -> T:
    """Return what `by` returned: the `build` of a component, or a function of this name.

    Raises PluginError where that is not what was promised: it names who returned it, and what it must be.
    """
    if isinstance(found, wanted):
        return found
    who, must = by if isinstance(by, str) else f"{named(by)}.build", f"{wanted.__module__}.{wanted.__qualname__}"
    why = f"{who} returned a {type(found).__name__}, which is no {wanted.__name__}"
    raise PluginError(why, key=key, fix=f"let it return a {must.removeprefix('builtins.')}")


def named(thing: object) -> str:
    """Return the class of an object as errors write it."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


class Held(Component):
    """Base of kinds whose components are asked about themselves: what a subclass answers is held to what its kind promises."""

    @classmethod
    def __pydantic_init_subclass__(cls, **more: Any) -> None:
        """Have the answers of the class checked."""
        hold(cls, Component)


def hold(cls: type, root: type) -> None:
    """Have what the methods of a class under `root` say checked whenever they are asked, as its bases there promise."""
    for base in (base for base in cls.__mro__[1:] if issubclass(base, root)):
        for name, promise in list(vars(base).items()):
            answer = promise.__annotations__.get("return") if isinstance(promise, FunctionType) else None
            owner = next(each for each in cls.__mro__ if name in vars(each))
            if answer in ANSWERS and (owner is cls or not issubclass(owner, root)):
                setattr(cls, name, _checked(vars(owner)[name], answer))


def _checked(method: Callable[..., Any], answer: str) -> Any:
    @wraps(method)
    def ask(self: Any, *arguments: Any, **more: Any) -> Any:
        found = method(self, *arguments, **more)
        if isinstance(found, ANSWERS[answer]) and (answer.startswith("bool") or not isinstance(found, bool)):
            return found
        why = f"{named(self)}.{method.__name__} returned {found!r:.60}, which is no {answer}"
        raise PluginError(
            why, key=SECTION_OF.get(self.kind, self.kind), fix=f"return {answer}; docs/kinds.md says what it is"
        )

    return ask
