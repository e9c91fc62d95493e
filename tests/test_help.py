"""`gym COMMAND --help`: every option says what it is and what it is by default, and commands that take words have an example."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from gym_core.cli import cli
from gym_core.discovery import entries


def commands(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


FOUND = dict(commands(cli, ("gym",)))


def test_every_command_is_looked_at() -> None:
    assert {f"gym {entry.name.replace('.', ' ')}" for entry in entries("commands")} <= FOUND.keys()


@pytest.mark.parametrize("path", FOUND)
def test_help_says_what_each_option_is_and_shows_how_to_ask(path: str) -> None:
    command = FOUND[path]
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
            usual = option.get_default(click.Context(command), call=False)
            told = option.show_default or not isinstance(usual, str | int | float) or not usual
            assert told, f"{option.name}: its default is not told"
    if any(isinstance(each, click.Argument) or each.required for each in command.params):
        assert f"Example: `{path} " in (command.help or "").replace("\n", " ")
    listed = command.get_help(click.Context(command, info_name=path, terminal_width=80))
    assert not [line for line in listed.splitlines()[1:] if line.endswith("...")], "what does not fit a list is cut off"
