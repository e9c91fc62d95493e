"""A command whose KEY=VALUE are the options of a config class: its help lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import click
from pydantic.fields import FieldInfo

from gym_core.component import Component, Config
from gym_manage.option_text import default_of


class OptionsCommand(click.Command):
    """A command whose help lists the options of a config class, each with its default and what it means."""

    omitted: ClassVar[frozenset[str]] = frozenset()
    """Options that are given in another way."""

    def __init__(self, *arguments: Any, options: type[Config], **further: Any) -> None:
        """Take what any command takes, and the class."""
        super().__init__(*arguments, **further)
        self.options = options

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list."""
        with formatter.section("KEY=VALUE"):
            formatter.write_dl([*self._listed(self.options)])

    def typed(self, field: FieldInfo) -> str:
        """Return a default as it is typed; nothing where none says anything."""
        empty = field.is_required() or field.default in (None, "", (), {})
        return "" if empty else default_of(field)

    def _listed(self, options: type[Config], around: str = "") -> Iterator[tuple[str, str]]:
        for name, field in options.model_fields.items():
            inner, key = field.default, around + name
            if isinstance(inner, Config) and not isinstance(inner, Component):
                yield from self._listed(type(inner), f"{key}.")
            elif key not in self.omitted:
                usual, need = self.typed(field), "Required. " * field.is_required()
                yield f"{key}={usual}" if usual else key, need + (field.description or "")
