"""The command line. Importing this module, `--help` and `--plugins list` import no plugin, no pydantic and no pluggy.

Commands of plugins come from the group `gym.commands`; until one is run, only its source is read, for the help.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from io import BufferedWriter, FileIO, TextIOWrapper
from select import select
from types import MappingProxyType
from typing import Any, NoReturn

import click

from gym_core import __version__, errors
from gym_core.discovery import Entry, catalogue, entries, nearest
from gym_core.metadata import read_file, read_headers

_exit = os._exit
_COMMANDS = {
    "train": ("gym_core.cli.recipes:train", "Run a recipe: load, train, quantize, export."),
    "validate": ("gym_core.cli.recipes:validate", "Check a recipe and report every problem at once."),
    "plugins": ("gym_core.cli.plugins:plugins", "List and manage what is installed."),
}


class Commands(click.Group):
    """Commands of the kernel and of plugins, imported when they are run. `group.command` names a command in a group."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]] = MappingProxyType({}), **more: Any) -> None:
        super().__init__(*args, **more)
        self.lazy = lazy
        self.prefix = "" if lazy else f"{self.name}."

    def _plugins(self) -> dict[str, str]:
        """Return the commands of plugins in this group with their short help."""
        own, head = {*self.lazy, *self.commands}, self.prefix
        of = [(entry.name.removeprefix(head), entry) for entry in entries("commands") if entry.name.startswith(head)]
        return {name: f"{_purpose(e)} [{e.dist}]" for name, e in of if "." not in name and name not in own}

    def list_commands(self, context: click.Context) -> list[str]:
        """Name all commands: the kernel's, then those of plugins."""
        return [*self.lazy, *self.commands, *sorted(self._plugins())]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import one command."""
        if name in self.lazy:
            module, _, attribute = self.lazy[name][0].partition(":")
            return getattr(importlib.import_module(module), attribute)
        dist, slash, short = name.rpartition("/")
        if name in self.commands or not any(entry.name == self.prefix + short for entry in entries("commands")):
            return super().get_command(context, name)
        from gym_core.loading import find, load

        entry = find("commands", f"{dist}{slash}{self.prefix}{short}")
        command = load(entry)
        if not isinstance(command, click.Command):
            fix = f"update or uninstall {entry.dist}"
            raise errors.PluginError(f"{entry.value} is no command", where=f"{entry.dist} {entry.version}", fix=fix)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. The error of an unknown one has the nearest name, or the package that provides it."""
        if self.get_command(context, args[0]) is None and not args[0].startswith("-"):
            path, name = context.command_path, args[0]
            inner = (entry.name.replace(".", " ") for entry in entries("commands") if entry.name.endswith(f".{name}"))
            near = next(inner, "") or nearest(name, self.list_commands(context))
            fix = f"did you mean `{path} {near}`?" if near else f"`{path} --help` lists them"
            if package := catalogue().get(f"commands/{self.prefix}{name}"):
                fix = f"pip install {package}"
            raise errors.RecipeError(f"there is no command `{name}`", where=path, fix=fix)
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help from static data."""
        own = {name: text for name, (_, text) in self.lazy.items()}
        own |= {name: command.get_short_help_str() for name, command in self.commands.items()}
        for title, listed in (("Commands", own), ("Commands of plugins", dict(sorted(self._plugins().items())))):
            if listed:
                with formatter.section(title):
                    formatter.write_dl(list(listed.items()))


def _purpose(entry: Entry) -> str:
    """Return the first line of a command's docstring, read from its source, else the summary of its package."""
    module, _, name = entry.value.partition(":")
    for folder in sys.path:
        with suppress(OSError, UnicodeDecodeError):
            source = read_file(os.path.join(folder, *module.split(".")) + ".py").decode()
            body = source.partition(f"\ndef {name}(")[2].partition("\ndef ")[0]
            if said := body.partition('"""')[2].partition('"""')[0].partition("\n")[0]:
                return errors.printable(said, 200)
            break
    with suppress(OSError, UnicodeDecodeError):
        return errors.printable(read_headers(entry.metadata).get("Summary", [""])[0], 200)
    return ""


@click.command(cls=Commands, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gym")
@click.option("--plugins", metavar="COMMAND", expose_value=False, help="Same as `gym plugins COMMAND`.")
def cli() -> None:
    """Train, align, compress, merge and serve language models; every method is a plugin."""


def main() -> None:
    """Run the command line; the one place where errors become text and exit codes."""
    codes: list[int] = []
    atexit.register(_leave, codes)  # before anybody else's: the first one is called last
    _guard_exit()
    _print_anything()
    _delay_garbage_collection()
    codes.append(run(sys.argv[1:]))
    os._exit = _exit
    sys.exit(codes[0])


def _leave(codes: list[int]) -> None:
    """Exit without the shutdown of the interpreter, which takes a second and makes some libraries print."""
    with suppress(OSError, IndexError):  # output that cannot be flushed, or no code: the normal shutdown reports that
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None where the process was started with it closed
            stream.flush()
        _exit(codes[0])


def _guard_exit() -> None:
    """Make sure that a command that other code ends by `os._exit` or `os.exec*` does not exit with 0."""
    own = os.getpid()

    def leave(status: int) -> NoReturn:
        if status == 0 and os.getpid() == own:
            os.write(2, b"error: something called os._exit(0) before the command was done\n")
            status = errors.FAILED
        _exit(status)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.exec" and os.getpid() == own and os._exit is leave:
            raise RuntimeError("a plugin may not replace the process of a command")

    os._exit = leave
    sys.addaudithook(watch)


def _print_anything() -> None:
    """Escape what a terminal cannot show, and drop what nobody reads: `gym train r.yaml 2>&1 | head` must not end a run."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stderr, TextIOWrapper):
        told, how = BufferedWriter(_Unheard(sys.stderr.fileno(), "w", closefd=False)), sys.stderr.encoding
        sys.stderr = TextIOWrapper(told, how, errors="backslashreplace", line_buffering=True)


class _Unheard(FileIO):
    """A file that takes what cannot be written, and drops it."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:  # its reader is gone, or the disk is full
            return memoryview(data).nbytes


def _delay_garbage_collection() -> None:
    """Delay the first garbage collection until after imports: it would take a second and free nothing."""
    usual = gc.get_threshold()

    def begin(*_: object) -> None:
        gc.callbacks.remove(begin)
        gc.set_threshold(*usual)

    gc.callbacks.append(begin)
    gc.set_threshold(1_000_000)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code (`gym_core.errors`)."""
    as_json, stdout = "--json" in arguments, sys.stdout
    # https://no-color.org, which click does not ask
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if arguments and arguments[0].partition("=")[0] == "--plugins":
        arguments = ["plugins", *filter(None, [arguments[0].partition("=")[2]]), *arguments[1:]]
    try:
        code = cli.main(arguments, prog_name="gym", standalone_mode=False, color=False if plain else None)
        return code if isinstance(code, int) else errors.OK
    except errors.GymError as error:
        report(error, as_json)
        return error.code
    except click.ClickException as error:
        wrong = errors.RecipeError(error.format_message(), where="command line")
        report(wrong, as_json) if as_json else error.show()
        return errors.USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return errors.INTERRUPTED
    except SystemExit as error:
        # Where a pipe breaks, click replaces the output and rich raises this; that of the output: its reader has seen enough.
        broken = sys.stdout is not stdout or isinstance(error.__context__, BrokenPipeError)
        if broken and select([stdout], [], [], 0)[0]:
            return errors.OK
        if arguments and arguments[0] in _COMMANDS:  # which end otherwise: it is a plugin's
            report(errors.GymError(f"something called sys.exit({error.code!r}) before the command was done"), as_json)
            return errors.FAILED
        return error.code if isinstance(error.code, int) else errors.FAILED * bool(error.code)
    except Exception as error:
        if os.environ.get("GYM_TRACEBACK"):
            raise
        why = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        from gym_core.blame import raised

        where, fix = raised(error), "GYM_TRACEBACK=1 shows where"
        fix += errors.RECORDED * (errors.RECORDED in getattr(error, "__notes__", ()))
        if isinstance(error, OSError):  # a full disk, a lost mount, missing rights
            where, fix = str(error.filename2 or error.filename or where), f"see to it and run it again; {fix}"
        report(errors.GymError(why, where=where, fix=fix), as_json)
        return errors.FAILED


def report(error: errors.GymError, as_json: bool) -> None:
    """Print an error, unless another process of the run does."""
    if error.quiet:
        return
    if as_json:
        with suppress(OSError):  # where that cannot be written, people are told
            click.echo(json.dumps({"problems": [problem.to_json() for problem in error.problems]}, indent=2))
            return
    click.echo("\n".join(f"error: {problem}" for problem in error.problems), err=True)
