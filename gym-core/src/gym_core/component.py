"""Components: what a recipe names. The class is the schema, the defaults, the documentation and a lazy pointer to the code."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """A strict, immutable group of options: unknown keys are errors, numbers finite, and every field has a docstring."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True, allow_inf_nan=False
    )
    changeable: ClassVar[frozenset[str]] = frozenset()
    """Options that may differ when a run is resumed: none of them changes a number of a finished step."""


class Component(Config):
    """Something a recipe names: an algorithm, an adapter, an optimizer, an exporter."""

    kind: ClassVar[str]
    """Kind it belongs to; the entry-point group is `gym.<kind>`."""
    target: ClassVar[str] = ""
    """`module:name` of the implementation, called as `name(config, **context)` by `build`."""
    outside: ClassVar[str] = ""
    """What it needs that no package brings, such as a network; where there is something, the laws of its kind are not run."""

    def build(self, **context: Any) -> Any:
        """Import the implementation, and call it with this configuration and the context that the kind's docstring promises."""
        return construct(self.target, self, **context)

    def check(self) -> None:
        """Raise GymError where what the options name is not there: asked by `gym validate` and before a run writes; light."""


def load_object(reference: str) -> Any:
    """Import `package.module:name.attribute` and return the object."""
    module, _, path = reference.partition(":")
    return attrgetter(path)(importlib.import_module(module))


def construct(reference: str, /, *given: Any, **context: Any) -> Any:
    """Import what `reference` names and call it; an error of the call itself is that of the package it belongs to (`blame`)."""
    return load_object(reference)(*given, **context)


@dataclass(frozen=True)
class Slot:
    """A place where a component is named: a section of the recipe, or a field of another component (see docs/kinds.md)."""

    kind: str
    default: str | None = None  #: name taken when the mapping names none
    implied: bool = False  #: whether the default, if installed, also stands in where the recipe leaves the section out
    bare: str | None = None  #: field that a bare string fills (of the default component); without it it is the name
    selector: str = "name"  #: key of the mapping that holds the name
    many: bool = False  #: whether the place holds a list (sections only; a field says so with its type)


def owner(cls: type[Config] | None, keys: Sequence[str | int]) -> type[Config] | None:
    """Return the class whose options stand under these keys: a field may hold options of its own, beside other types."""
    for key in keys:
        info = cls.model_fields.get(str(key)) if cls else None
        kinds = (get_args(info.annotation) or (info.annotation,)) if info else ()
        cls = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Config)), cls)
    return cls
