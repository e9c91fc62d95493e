"""Shapes of rows that other packages bring: what algorithms of theirs learn from, where none of those here is it.

An algorithm names it in `rows`, as `module:name` of a `Shape`; sources, cache, mixing, previews and held-out rows need no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gym_core import PluginError
from gym_core.component import load_object
from gym_data.examples import KINDS, Example
from gym_data.kinds import Format
from gym_data.rows import SHAPES, Row


@dataclass(frozen=True)
class Shape:
    """Rows of a kind, from what a format makes of them to what a sample knows."""

    rows: tuple[type[Row], ...]
    """What formats make of such rows."""
    encode: Callable[[Any, Any], Iterator[Any]]
    """Makes sequences of them: called with the reader of the rows and the tokenizer, as `gym_data.encodings.encoders` has it."""
    example: type[Example]
    """What a sample is: `example(id, tokens, trained, reader=..., **piece.about)`."""
    detect: Callable[[Sequence[Mapping[str, Any]]], Format | None]
    """Tells the format of the first rows of a source by their columns; None where they have none that is known."""
    told_by: str
    """What a recipe says of columns with names of their own, as YAML without braces: `name: pairs, first: question`."""
    shown: Callable[[str, str, str], Mapping[str, Any]]
    """A row of two texts that belong together, and a third that does not: laws learn from such ones."""


def brought(shape: str) -> Shape | None:
    """Return the shape that a name of the form `module:name` leads to; None for those of gym-data.

    Raises PluginError where there is another thing.
    """
    if ":" not in shape:
        return None
    found = load_object(shape)
    if not isinstance(found, Shape):
        raise PluginError(f"`{shape}` is a {type(found).__name__}, and no gym_data.shapes.Shape", key="algorithm.rows")
    return found


def rows_of(shape: str) -> tuple[type[Row], ...]:
    """Return what rows of a shape can mean; nothing where there is no such shape."""
    own = brought(shape)
    return own.rows if own else SHAPES.get(shape, ())


def example_of(shape: str) -> type[Example]:
    """Return what samples of a shape are."""
    own = brought(shape)
    return own.example if own else KINDS.get(shape, Example)
