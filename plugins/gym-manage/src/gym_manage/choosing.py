"""`gym plugins disable`, `enable` and `choose`: write `gym.toml`, which says what of all that is installed is used."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import click

from gym_core import errors
from gym_core.choices import TABLES, project_file, read_text, user_file
from gym_core.discovery import installed, nearest
from gym_core.metadata import canonical

_project = click.option("--project", is_flag=True, help="In the project's `gym.toml`, not in yours.")


@click.command()
@click.argument("name")
@_project
def disable(name: str, project: bool) -> None:
    """Set a plugin aside: NAME is a distribution, `distribution/name`, or a name that only one brings.

    Example: `gym plugins disable gym-foo/adamw`
    """
    _write(_meant(name), "false", project)


@click.command()
@click.argument("name")
@_project
def enable(name: str, project: bool) -> None:
    """Use a plugin again that was disabled.

    Example: `gym plugins enable gym-foo/adamw`
    """
    meant, path = _meant(name), _file(project)
    write_choice(path, meant, "")
    installed.cache_clear()
    dist, _, short = meant.partition("/")
    if installed().choices.disabled(dist, short):  # another file, or the whole distribution
        write_choice(path, meant, "true")
    _said(path)
    if file := installed().choices.disabled(dist, short):
        raise errors.PluginError(
            f"{meant} is still disabled by {file}", fix="the project's file outweighs yours: add --project"
        )


@click.command()
@click.argument("name")
@click.argument("distribution")
@_project
def choose(name: str, distribution: str, project: bool) -> None:
    """Say whose a name is that several distributions bring: NAME is `kind/name`, such as `optimizers/adamw`.

    Example: `gym plugins choose optimizers/adamw gym-optim`
    """
    kind, _, short = name.partition("/")
    owners = [entry.dist for entry in installed().named.get((kind, short), [])]
    if canonical(distribution) not in owners:
        fix = f"it is brought by {', '.join(owners)}" if owners else "`gym plugins list` shows kinds and names"
        raise errors.PluginError(f"{distribution} brings no `{name}`", fix=fix)
    _write(name, json.dumps(canonical(distribution)), project)


def _meant(name: str) -> str:
    """Return `distribution` or `distribution/name` of something installed. Raises PluginError for anything else."""
    every = [*(entry for group in installed().entries.values() for entry in group), *installed().disabled]
    head, slash, short = name.partition("/")
    if not slash and any(entry.dist == canonical(head) for entry in every):
        return canonical(head)
    found = sorted(
        {e.qualified for e in every if e.name == (short or head) and (not slash or e.dist == canonical(head))}
    )
    if len(found) == 1:
        return found[0]
    near = nearest(name, sorted({entry.dist for entry in every} | {entry.name for entry in every}))
    fix = (
        f"write {' or '.join(found[:3])}" if found else f"did you mean `{near}`?" if near else "see `gym plugins list`"
    )
    why = f"several distributions bring `{name}`" if found else f"nothing installed is called `{name}`"
    raise errors.PluginError(why, fix=fix)


def _file(project: bool) -> Path:
    return Path(project_file() or "gym.toml").absolute() if project else Path(user_file())


def _write(key: str, value: str, project: bool) -> None:
    path = _file(project)
    write_choice(path, key, value)
    _said(path)


def _said(path: Path) -> None:
    installed.cache_clear()
    installed()  # what was written can be followed
    click.echo(f"wrote {path}")


def write_choice(path: Path, key: str, value: str) -> None:
    """Write one line of the table, or take it out where the value is empty; all other lines stay as they are.

    Raises RecipeError, and writes nothing, where the table is written in another form than lines below its header.
    """
    lines, table = read_text(str(path)).splitlines(), TABLES[path.name]
    header = re.compile(rf"\s*\[\s*{re.escape(table)}\s*\]\s*(#.*)?")
    start = next((at for at, line in enumerate(lines, start=1) if header.fullmatch(line)), 0)
    lines += [] if start else [f"[{table}]"]
    start = start or len(lines)
    end = next((at for at in range(start, len(lines)) if lines[at].startswith("[")), len(lines))
    kept = [line for line in lines[start:end] if _key(line) != _normal(key)]
    lines[start:end] = [f'"{key}" = {value}', *kept] if value else kept
    text = "\n".join([*lines, ""])
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        fix = f"move them below a line `[{table}]`"
        raise errors.RecipeError("its choices are not lines below a header", where=str(path), fix=fix) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _key(line: str) -> str:
    """Return the key of a line of the table, empty for any other line."""
    found = re.match(r"""\s*(["']?)([^"'=#]+?)\1\s*=""", line)
    return _normal(found[2]) if found else ""


def _normal(key: str) -> str:
    head, slash, name = key.partition("/")
    return canonical(head) + slash + name
