"""The command line. Importing this module, `--help` and `--plugins list` import no plugin, no pydantic and no pluggy.

Commands of plugins come from the group `gym.commands`; until one is run, all that is known of it is its owner's summary.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

import click

from gym_core import __version__, errors
from gym_core.discovery import entries, read_headers

_COMMANDS = {
    "train": ("gym_core.cli.recipes:train", "Run a recipe: load, train, quantize, export."),
    "validate": ("gym_core.cli.recipes:validate", "Check a recipe and report every problem at once."),
    "explain": ("gym_core.cli.recipes:explain", "Print the canonical recipe and the code that will run."),
    "schema": ("gym_core.cli.recipes:schema", "Print a JSON Schema of everything installed, for editors."),
    "export": ("gym_core.cli.recipes:export", "Export what a finished run made."),
    "plugins": ("gym_core.cli.plugins:plugins", "List, show and check what is installed."),
    "doctor": ("gym_core.cli.doctor:doctor", "Check this machine and its installation."),
}


class Commands(click.Group):
    """The kernel's commands and those of plugins, imported when they are run."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Name all commands: the kernel's, then those of plugins."""
        return [*_COMMANDS, *sorted({entry.name for entry in entries("commands")} - _COMMANDS.keys())]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import one command."""
        if name in _COMMANDS:
            module, _, attribute = _COMMANDS[name][0].partition(":")
            return getattr(importlib.import_module(module), attribute)
        if not any(name in (entry.name, entry.qualified) for entry in entries("commands")):
            return None
        from gym_core.loading import find, load

        return load(find("commands", name))

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a misspelt one gets the nearest name."""
        if self.get_command(context, args[0]) is None and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(context), n=1)
            raise errors.RecipeError(
                f"there is no command `{args[0]}`",
                where="gym",
                fix=f"did you mean `gym {near[0]}`?" if near else "`gym --help` lists them",
            )
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help from static data."""
        owners = {entry.name: f"{_summary(entry.metadata)} [{entry.dist}]" for entry in entries("commands")}
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])
        if owners:
            with formatter.section("Commands of plugins"):
                formatter.write_dl(sorted(owners.items()))


def _summary(metadata: str) -> str:
    try:
        return read_headers(metadata).get("Summary", [""])[0]
    except (OSError, UnicodeDecodeError):
        return ""


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gym")
@click.option("--plugins", metavar="COMMAND", expose_value=False, help="Same as `gym plugins COMMAND`.")
def cli() -> None:
    """Train, align, compress, merge and serve language models; every method is a plugin."""


def main() -> None:
    """Run the command line; the one place where errors become text and exit codes."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code (`gym_core.errors`)."""
    # Pydantic would load plugins of its own from whatever is installed; one unreadable distribution would stop it.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    as_json = "--json" in arguments
    if arguments and arguments[0].partition("=")[0] == "--plugins":
        arguments = ["plugins", *filter(None, [arguments[0].partition("=")[2]]), *arguments[1:]]
    try:
        code = cli.main(arguments, prog_name="gym", standalone_mode=False)
        return code if isinstance(code, int) else errors.OK
    except errors.GymError as error:
        report(error, as_json)
        return error.code
    except click.ClickException as error:
        error.show()
        return errors.USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return errors.INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it replaces a stream that is closed at exit
        return errors.OK
    except Exception as error:
        if os.environ.get("GYM_TRACEBACK"):
            raise
        why = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        where, fix = errors.unexpected(error), "GYM_TRACEBACK=1 shows where; run.json holds it too"
        if isinstance(error, OSError):  # a full disk, a lost mount, missing rights
            where, fix = str(error.filename or where), f"see to it and run the same command again; {fix}"
        report(errors.GymError(why, where=where, fix=fix), as_json)
        return errors.FAILED


def report(error: errors.GymError, as_json: bool) -> None:
    """Print an error, unless another process of the run does."""
    if error.quiet:
        return
    if as_json:
        click.echo(json.dumps({"problems": [problem.to_json() for problem in error.problems]}, indent=2))
    else:
        click.echo("\n".join(f"error: {problem}" for problem in error.problems), err=True)
