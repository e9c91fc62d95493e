"""What every installed plugin is, asked in a process of its own for each distribution: `python -m gym_manage.inspection`.

Nobody selected these plugins, so nothing that one does when it is imported may reach the process that asks, or what is said of
the others: it may print, hang, end its process, patch libraries. What comes back is a file, of bounded size and checked form.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import click
from pydantic import BaseModel, TypeAdapter, ValidationError
from stevedore.driver import DriverManager

from gym_core.cli import cli
from gym_core.component import Component, Slot
from gym_core.discovery import Entry, installed, named
from gym_core.errors import PluginError, Problem
from gym_core.loading import load, load_component
from gym_core.metadata import MOST, read_file
from gym_core.sections import nested_slots
from gym_manage.option_text import default_of, type_of

TEXT = 20_000  #: characters of one text of a plugin that are kept
SCHEMA = 2**20  #: characters of the schema of one component
LATE = "did not end within"
MORE_TIME = "`gym plugins check --timeout 120` waits longer: the first import after an installation is slow"
PLAIN = {
    "advice",
    "dialects",
    "facade",
    "commands",
    "hooks",
    "export_dialects",
    "predict_dialects",
    "kinds",
    "remarks",
    "serving_dialects",
}  #: groups whose objects are not components


class Option(BaseModel):
    """One option of a component in words."""

    name: str
    type: str
    default: str
    doc: str


class About(BaseModel):
    """What one class or object is, under all the names that lead to it."""

    kind: str
    names: list[str]
    doc: str = ""
    target: str = ""
    options: list[Option] = []
    form: dict[str, Any] = {}
    """JSON Schema of its options."""
    slots: dict[str, Slot] = {}
    problems: list[Problem] = []


_ANSWER = TypeAdapter(list[About])


def inspect_all(wanted: Callable[[Entry], bool], seconds: float = 20.0) -> dict[str, list[About]]:
    """Return what the wanted entry points are, by distribution; each distribution has so many seconds."""
    chosen: dict[str, list[Entry]] = {}
    for group in installed().entries.values():
        for entry in filter(wanted, group):
            chosen.setdefault(entry.dist, []).append(entry)
    parts = os.cpu_count() or 1 if hasattr(os, "fork") else len(chosen) or 1
    dists = sorted(chosen)
    with ThreadPoolExecutor(parts) as pool, tempfile.TemporaryDirectory() as folder:
        for dist, owned in chosen.items():
            names = [[entry.kind, entry.name] for entry in owned]
            (Path(folder) / dist).write_text(json.dumps(names), encoding="utf-8")
        ended = "\n".join(pool.map(lambda part: _run(folder, dists[part::parts], seconds), range(parts)))
        how = dict(line.partition(" ")[::2] for line in ended.splitlines())
        return {dist: _answer(Path(folder) / dist, chosen[dist], how.get(dist, "ended the process")) for dist in dists}


def _run(folder: str, dists: list[str], seconds: float) -> str:
    """Start the process that asks these distributions one by one, and return how each ended."""
    command = [sys.executable, "-P", "-m", "gym_manage.inspection", folder, str(seconds), *dists]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    limit, none = (seconds + 5) * len(dists) + 60, subprocess.DEVNULL
    with (
        suppress(subprocess.TimeoutExpired),
        subprocess.Popen(
            command, stdin=none, stdout=subprocess.PIPE, stderr=none, env=environment, text=True
        ) as asking,
    ):
        try:
            return asking.communicate(timeout=limit)[0]
        finally:
            asking.kill()
    return ""


def _answer(letter: Path, owned: list[Entry], ended: str) -> list[About]:
    names, dist = sorted([entry.kind, entry.name] for entry in owned), owned[0].dist
    with suppress(OSError, ValidationError):
        told = _ANSWER.validate_json(read_file(str(letter), MOST))
        if sorted([item.kind, name] for item in told for name in item.names) == names:
            return told
    fix = MORE_TIME if ended.startswith(LATE) else f"update or uninstall {dist}"
    problem = Problem(f"importing it {ended}", dist, fix=fix)
    return [About(kind=owned[0].kind, names=[entry.name for entry in owned], problems=[problem])]


def about(entries: Iterable[Entry]) -> list[About]:
    """Import these entry points of one distribution and say what they are; names that lead to one object are told as one."""
    told: dict[tuple[str, str], About] = {}
    for entry in entries:
        key = entry.kind, entry.value
        if key in told:
            told[key].names.append(entry.name)
        else:
            told[key] = _asked(entry)
        if entry.kind == "commands":
            told[key].problems.extend(_unreached(entry))
    return list(told.values())


def _asked(entry: Entry) -> About:
    try:
        return _about(entry)
    except BaseException as error:  # a class can answer any question with any exception
        why = f"its configuration cannot be described: {type(error).__name__}"
        said = [Problem(why, entry.title, fix=f"update or uninstall {entry.dist}")]
        said = error.problems if isinstance(error, PluginError) else said
        return About(kind=entry.kind, names=[entry.name], problems=said)


def _unreached(entry: Entry) -> list[Problem]:
    """Return the problem of a command that the words of its name do not lead to; what else is wrong with it is told already."""
    words, found = entry.name.split("."), cast("click.Command | None", cli)
    if len(named(entry.kind, entry.name)) > 1:
        return []
    with suppress(PluginError):
        command = load(entry)
        for word in words:
            found = found.get_command(click.Context(found), word) if isinstance(found, click.Group) else None
        if found is not command:
            why = f"`gym {' '.join(words)}` is no command, or another one"
            return [Problem(why, entry.title, fix="name the entry point `COMMAND`, or `GROUP.COMMAND`")]
    return []


def _loads_elsewhere(entry: Entry) -> None:
    """Load it as any host that speaks entry points would. Raises what stevedore raises; broken metadata would hold it up."""
    if not installed().problems and len(installed().named[entry.kind, entry.name]) == 1:
        DriverManager(f"gym.{entry.kind}", entry.name, warn_on_missing_entrypoint=False)


def _about(entry: Entry) -> About:
    loaded = load(entry) if entry.kind in PLAIN else load_component(entry.kind, entry.qualified)[1]
    _loads_elsewhere(entry)
    made = About(kind=entry.kind, names=[entry.name], doc=(inspect.getdoc(loaded) or "")[:TEXT])
    if not (isinstance(loaded, type) and issubclass(loaded, Component)):
        return made
    made.target, made.slots = str(loaded.target)[:300], nested_slots(loaded)
    for name, info in loaded.model_fields.items():
        doc = " ".join((info.description or "")[:TEXT].split())
        made.options.append(Option(name=name, type=type_of(info)[:300], default=default_of(info)[:300], doc=doc))
    made.form = loaded.model_json_schema()
    if len(made.model_dump_json()) > SCHEMA:
        raise ValueError("too large")
    return made


def main(folder: str, seconds: str, *dists: str) -> None:
    """Ask distributions one after another, where the system can do it each in a copy of this process; print how each ended."""
    for dist in dists:
        child = os.fork() if hasattr(os, "fork") else 0
        if child == 0:
            _write(Path(folder) / dist, dist)
        status = _wait(child, float(seconds))
        with suppress(OSError):
            os.killpg(child, signal.SIGKILL)  # with what it started
        if status is None:
            os.waitpid(child, 0)
        late, done = f"{LATE} {float(seconds):g} s", f"ended the process with status {status}"
        print(dist, late if status is None else done, flush=True)  # noqa: T201 - the process that asks reads it


def _write(letter: Path, dist: str) -> None:
    """Read from a file what is asked, write the answer in its place, and end without waiting for threads."""
    try:
        if hasattr(os, "setsid"):
            os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        asked = {(kind, name) for kind, name in json.loads(letter.read_text(encoding="utf-8"))}
        owned = [entry for group in installed().entries.values() for entry in group if entry.dist == dist]
        letter.write_bytes(_ANSWER.dump_json(about(entry for entry in owned if (entry.kind, entry.name) in asked)))
    finally:
        os._exit(0)


def _wait(child: int, seconds: float) -> int | None:
    """Return the exit status of a child process, or None where it did not end in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
