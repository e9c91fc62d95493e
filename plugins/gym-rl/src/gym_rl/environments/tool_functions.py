"""The functions that a model may call: those that a recipe names, and the methods of classes that it names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from inspect import Parameter
from types import FunctionType, MethodType
from typing import Any

from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

from gym_core.errors import GymError
from gym_rewards.builtin.python_function import load_function
from gym_rewards.coroutines import settled
from gym_rl.environment import KEY, Closes, closes
from gym_rl.environments.config import FIX

BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)  #: parameters that a call can give
RESET = "reset"  #: method that begins an episode and is no tool
#: Method that says what an episode has earned, and is no tool: a model would ask it for the answer.
REWARD = "get_reward"
CLOSE = "close"  #: method that lets go of what an object holds and is no tool

Functions = dict[str, Callable[..., Any]]  #: by the names that they are called by


class ToolFunctions:
    """What a recipe names, imported."""

    def __init__(self, references: Sequence[str]) -> None:
        """Import all. Raises GymError where one is not there, or two have one name."""
        found = [load_function(reference, KEY, FIX) for reference in references]
        self.classes = [each for each in found if inspect.isclass(each)]
        self._plain = [(str(getattr(each, "__name__", each)), each) for each in found if not inspect.isclass(each)]
        self._of(object() for _ in self.classes)

    def begun(self, row: Mapping[str, Any]) -> tuple[Functions, list[Any]]:
        """Return the functions of one episode, and the objects that some of them belong to, which were told the row.

        Raises GymError where a `reset` has something to say: the prompt is written already.
        """
        made: list[Any] = []
        try:
            made.extend(cls() for cls in self.classes)  # one by one: those before one that fails are there
            for each in made:
                _reset(each, row)
        except BaseException:
            with suppress(Exception):  # what went wrong first is told
                closed(made)
            raise
        return self._of(made), made

    def described(self) -> list[dict[str, Any]]:
        """Return them as OpenAI describes functions. Raises GymError where a signature or docstring does not say enough."""
        return [_described(name, function) for name, function in self._of(object() for _ in self.classes).items()]

    def _of(self, objects: Any) -> Functions:
        pairs = [*self._plain]
        for cls, made in zip(self.classes, objects, strict=True):
            pairs += [(name, _bound(cls, name, made)) for name in _public(cls)]
        found: Functions = {}
        for name, function in pairs:
            if name in found:
                raise GymError(f"two tools are called `{name}`", key=KEY, fix="rename one of them")
            found[name] = function
        return found


def _reset(made: Any, row: Mapping[str, Any]) -> None:
    if callable(reset := getattr(made, RESET, None)) and (said := _given(reset, row)) is not None:
        raise GymError(
            f"`reset` of {type(made).__name__} returned {str(said)[:60]!r}, which no prompt shows",
            key=KEY,
            fix="return nothing, and have the row's prompt say it",
        )


def closed(objects: Sequence[Any]) -> None:
    """Close objects of an episode that say how. Raises what they raise, after all were told."""
    with ExitStack() as stack:
        for each in reversed(objects):
            if closes(each):
                stack.callback(_close, each)


def _close(made: Closes) -> None:
    settled(made.close())


def described(references: Sequence[str]) -> list[dict[str, Any]]:
    """Return functions as OpenAI describes them. Raises GymError where one is not there, or does not say enough."""
    return ToolFunctions(references).described()


def _public(cls: type) -> list[str]:
    """Return the names of its methods that are tools: not those that it has of a type of Python, such as `dict`."""
    found = (name for name, each in inspect.getmembers(cls) if inspect.isfunction(each) or inspect.ismethod(each))
    return [name for name in found if name not in (RESET, REWARD, CLOSE) and not name.startswith("_")]


def _bound(cls: type, name: str, made: object) -> Callable[..., Any]:
    """Return a method of an object, which may be any to be described."""
    found = inspect.getattr_static(cls, name)
    return MethodType(found, made) if isinstance(found, FunctionType) else getattr(cls, name)


def earned(made: Any) -> float:
    """Return what the object of an episode has earned: what `get_reward` says, else its attribute `reward`, else 0."""
    asked = getattr(made, REWARD, None)
    return float(settled(asked()) if callable(asked) else getattr(made, "reward", 0.0))


def _given(reset: Callable[..., Any], row: Mapping[str, Any]) -> Any:
    """Call it with the columns that it asks for."""
    parameters = inspect.signature(reset).parameters
    everything = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    return reset(**{name: value for name, value in row.items() if everything or name in parameters})


def _described(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        odd = [each for each in inspect.signature(function).parameters.values() if each.kind not in BY_NAME]
        found: dict[str, Any] = {} if odd else get_json_schema(function)
    except (
        DocstringParsingException,
        TypeHintParsingException,
        ValueError,
    ) as error:  # what is of C may have no signature
        raise GymError(
            f"the tool `{name}` cannot be described: {error}",
            key=KEY,
            fix="give it type hints, and a docstring with a line for each argument under `Args:`",
        ) from None
    if odd:
        raise GymError(
            f"the tool `{name}` has a parameter `{odd[0]}`, and is called with arguments by name",
            key=KEY,
            fix="name each of its arguments",
        )
    return found
