"""What a key of a dialect means: it chooses a component, or fills an option of one. Tables come from any package.

A component is told by the section of the recipe and its name, so a table needs nothing of the package that brings it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NamedTuple

from gym_core.component import Component
from gym_core.discovery import entries
from gym_core.loading import load_component


class Key(NamedTuple):
    """A key that fills an option: `Key("lora_rank", "adapter.rank", "lora dora")`."""

    key: str
    """Empty where no key says it: `default` is what every file means."""
    option: str
    """`section.option` that it fills."""
    of: str = ""
    """Names of the components that have the option, with spaces; empty for a section without components (`train`)."""
    convert: Callable[..., Any] | Mapping[Any, Any] | None = None
    """How the value becomes the option's: a function (`ValueError` says why not) or a table. None: the option is not set."""
    default: Any = None
    """What a file means that leaves the key out, where that differs from the option's default."""
    chosen_by: str = ""
    """Key that must have chosen the component for this to count, where several can: `use_galore` or `optim`."""
    together: str = ""
    """Further keys of which `convert` gets the values by name, where a file has them; they count with this one alone, unless
    they have rows of their own or this one has a default."""
    null: str = ""
    """Those of `together` for which null is a value, with spaces; of all other keys it means that they are left out."""
    unless: str = ""
    """Option of the section that says the same in another way: where it stands, the default does not count."""

    @property
    def section(self) -> str:
        """Return the section that it fills."""
        return self.option.partition(".")[0]

    @property
    def name(self) -> str:
        """Return the option without its section."""
        return self.option.partition(".")[2]

    def fits(self, component: str) -> bool:
        """Whether a component of the section has the option."""
        return not self.of or component in self.of.split()


@dataclass(frozen=True)
class Choice:
    """A key that chooses the component of a section by its value: `Choice("use_dora", "adapter", {"true": "dora"})`."""

    key: str
    section: str
    names: Mapping[str, str]
    """Name of the component for each value, in lower case; `*` stands for any value, which then fills an option too."""
    default: str = ""
    """Component that a file means which leaves the key out."""
    yields: Mapping[str, str] = field(default_factory=dict)
    """For a value, the keys that choose more narrowly where they are given, with spaces: `{"lora": "use_dora"}`."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Values that no component does, each with what to set in its place."""
    read: Callable[[Any], str] | None = None
    """How a value becomes one of `names`, or nothing, where it is a path or a list. `ValueError` says why not."""


class Keys(Component):
    """Base of the kinds of tables, of which each dialect has one. A table has no options: its rows are data.

    `build()` returns a `gym_dialect.table.Table`.
    """

    choices: ClassVar[tuple[Choice, ...]] = ()
    """Keys that choose components. Several tables may extend one key by further values."""
    keys: ClassVar[tuple[Key, ...]] = ()
    """Keys that fill options of components, this package's or others'."""

    def build(self, **context: Any) -> Table:
        """Return the tables."""
        return Table({self.kind: self.choices}, self.keys)


class Table(NamedTuple):
    """Rows of one package, or of all that are installed."""

    choices: Mapping[str, tuple[Choice, ...]]
    """By whose they are, such as `gym-foo/foo`."""
    keys: tuple[Key, ...]

    def choosing(self) -> dict[str, list[tuple[str, Choice]]]:
        """Return the rows of each key that chooses, with whose they are."""
        found: dict[str, list[tuple[str, Choice]]] = {}
        for owner, rows in self.choices.items():
            for row in rows:
                found.setdefault(row.key, []).append((owner, row))
        return found

    def filling(self, names: Mapping[str, str]) -> Iterator[Key]:
        """Yield the rows that fill options of these components, which are named by section."""
        return (row for row in self.keys if row.section in names and row.fits(names[row.section]))


@cache
def installed(kind: str) -> Table:
    """Return the rows of all installed tables of a kind. Raises PluginError for one that cannot be imported."""
    classes = [(entry.qualified, load_component(kind, entry.qualified)[1]) for entry in entries(kind)]
    tables = [(owner, cls().build()) for owner, cls in classes]
    choices = {owner: tuple(row for rows in table.choices.values() for row in rows) for owner, table in tables}
    return Table(choices, tuple(row for _, table in tables for row in table.keys))
