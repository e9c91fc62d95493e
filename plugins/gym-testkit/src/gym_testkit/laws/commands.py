"""Laws of commands: help is instant and exit codes are the documented ones."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

from gym_core.errors import OK, USAGE
from gym_testkit import warm
from gym_testkit.bench import Bench
from gym_testkit.distribution import Distribution
from gym_testkit.law import Laws

_SHOW_MODULES = """
import sys
from gym_core.cli import main
try:
    sys.exit(main())
finally:
    print(*sys.modules, file=sys.stderr)
"""


def _subjects(dist: Distribution) -> Iterator[tuple[str, EntryPoint]]:
    yield from ((entry.name, entry) for entry in dist.entry_points if entry.group == "gym.commands")


laws = Laws("command", _subjects)


@laws("--help needs no torch and exits with 0")
def helps(entry: EntryPoint, bench: Bench) -> None:
    """`gym <command> --help` prints its usage without importing a tensor library."""
    command = ("-c", _SHOW_MODULES, *entry.name.split("."), "--help")
    done = warm.run(*command, timeout=120, cwd=bench.root, light=True)
    assert done.returncode == OK, done.stderr[-2000:]
    assert entry.name.replace(".", " ") in done.stdout
    heavy = {"torch", "numpy", "transformers"} & set(done.stderr.split())
    assert not heavy, f"imports {', '.join(sorted(heavy))}"


@laws("an unknown option is a usage error")
def refuses(entry: EntryPoint, bench: Bench) -> None:
    """The exit code is 2, and the message names the option."""
    done = bench.gym(*entry.name.split("."), "--no-such-option")
    assert done.returncode == USAGE, done.stderr
    assert "no-such-option" in done.stderr
