"""Errors for users, each with where, which key, why and what to do, and the exit codes (docs/cli.md)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

OK = 0
FAILED = 1  #: the run itself failed, or a check did not hold
USAGE = 2  #: the command line or the recipe is wrong
PLUGIN = 3  #: a plugin is missing, broken, ambiguous or too new
DATA = 4  #: the data cannot be trained on
BUSY = 5  #: the output directory is in use, or holds another run
INTERRUPTED = 130  #: Ctrl-C, after a checkpoint was written
TERMINATED = 143  #: SIGTERM, after a checkpoint was written


def printable(text: str, most: int = 2000, keep: str = "") -> str:
    """Return text that is safe to print on a terminal: control characters are escaped, and it is cut after `most` characters."""
    cut = text[:most] + ("..." if len(text) > most else "")
    return "".join(sign if sign.isprintable() or sign in keep else ascii(sign)[1:-1] for sign in cut)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in at most four lines: where, key and why, what to do."""

    why: str
    where: str = ""  #: `file:line`, or the distribution, or empty
    key: str = ""  #: dotted key of the recipe, or empty
    fix: str = ""

    def __str__(self) -> str:
        """Render as one to four lines."""
        head = f"{self.key}: {self.why}" if self.key else self.why
        lines = self.where, f"  {head}" if self.where else head, self.fix and f"  -> {self.fix}"
        return "\n".join(printable(line) for line in lines if line)

    def to_json(self) -> dict[str, str]:
        """Return the four parts for `--json`."""
        return asdict(self)


RAISED = "raised in "  #: beginning of the note that names the plugin
UNEXPECTED = "unexpected error"
RECORDED = "; run.json holds it too"  #: note of an error that the record of a run has


def unexpected(error: BaseException) -> str:
    """Return the note that names the plugin an unexpected error was raised in, else `unexpected error`."""
    return next((note for note in getattr(error, "__notes__", ()) if note.startswith(RAISED)), UNEXPECTED)


class GymError(Exception):
    """An error a user can act on. `code` is the exit status of the command line."""

    code = FAILED

    def __init__(self, why: str | Sequence[Problem], *, where: str = "", key: str = "", fix: str = "") -> None:
        self.problems = [Problem(why, where, key, fix)] if isinstance(why, str) else list(why)
        self.quiet = os.environ.get("RANK", "0") != "0"  #: whether another process of the run reports it
        super().__init__("\n".join(str(problem) for problem in self.problems))


class RecipeError(GymError):
    """The recipe cannot be understood."""

    code = USAGE


class PluginError(GymError):
    """A plugin that was asked for cannot be used."""

    code = PLUGIN


class DataError(GymError):
    """The data cannot be read, or holds nothing to learn from."""

    code = DATA


class BusyError(GymError):
    """The output directory belongs to another run."""

    code = BUSY


class Interrupted(GymError):
    """The process was asked to stop, and stopped where it can resume."""

    def __init__(self, signum: int) -> None:
        self.code = 128 + signum  # as shells expect
        super().__init__("stopped by a signal; the checkpoint is complete", fix="run the same command to continue")
