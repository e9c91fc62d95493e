"""`gym new-plugin`: writes a complete package that passes `pytest --gym-dist` before its author changes a line.

The packages are the files under `new/`, text for `string.Template`; nothing here knows what is in them.
"""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from string import Template

import click

from gym_core.cli import cli
from gym_core.discovery import catalogue, entries, installed
from gym_core.errors import RecipeError
from gym_core.targets import defined
from gym_core.yamlfile import parse_scalar

_NEW = files("gym_testkit") / "new"
KINDS = tuple(sorted(folder.name for folder in _NEW.iterdir() if folder.is_dir() and folder.name != "common"))
_SUFFIX = ".tmpl"
#: Groups of entry points for which no package is written, and why: docs/writing-a-plugin.md says what to write instead.
WITHOUT = {
    "media": "what reads images... for models that a library knows: what they take up in a text, and what models are given",
    "advice": "a function of a package that has commands: what an unknown key may have meant",
    "axolotl_keys": "a table that stands beside the components whose options it names",
    "evaluators": "what asks a model the questions of a library of benchmarks, which no few lines stand for",
    "facade": "a name in Python for what a package has already",
    "kinds": "a contract between packages: its base class is all of it",
    "llamafactory_keys": "a table that stands beside the components whose options it names",
    "panels": "a page of the web interface: routes and templates, which docs/webui.md shows",
    "pruners": "what ends trials of a study early, which docs/tuning.md shows",
    "remarks": "a function of a package that has components: what `gym explain` says of a section",
    "samplers": "what chooses the values of trials of a study, which docs/tuning.md shows",
    "servers": "an engine around a runtime of its own, which no few lines stand for",
    "export_dialects": "a function beside a dialect: what its files mean to `gym export`",
    "predict_dialects": "a function beside a dialect: what its files mean to `gym predict`",
    "serving_dialects": "a function beside a dialect: what its files mean to commands that serve",
}


@click.command("new-plugin", epilog=f"KIND is one of: {', '.join(KINDS)}.")
@click.argument("kind", type=click.Choice(KINDS), metavar="KIND")
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    show_default="here",
    help="Directory in which the package's folder is made.",
)
def new_plugin(kind: str, name: str, into: Path) -> None:
    """Write a new package gym-NAME with a component NAME of this kind, ready to install, test and change.

    Example: `gym new-plugin algorithm my-method`
    """
    folder = write_plugin(kind, name, into)
    click.echo(f"wrote {folder}\nnext: pip install -e '{folder}[test]' && pytest --gym-dist gym-{name}")


def write_plugin(kind: str, name: str, into: Path) -> Path:
    """Write the package of this kind under `into` and return its folder.

    Raises RecipeError for a name that no package can have, or that something else has already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise RecipeError(
            f"`{name}` is no name for a plugin", key="NAME", fix="use small letters, digits and single hyphens"
        )
    folder = into / f"gym-{name}"
    if folder.exists():
        raise RecipeError(
            f"{folder} exists already", key="NAME", fix="choose another name, or another place with --into"
        )
    if taken := _taken(group_of(kind), name):
        raise RecipeError(f"`{name}` is taken: {taken}", key="NAME", fix="choose another name")
    cls = "".join(part.capitalize() for part in name.split("-"))
    words = {"name": name, "module": f"gym_{name.replace('-', '_')}", "cls": cls}
    if not isinstance(parse_scalar(name), str):
        raise RecipeError(f"recipes would not read `{name}` as a name", key="NAME", fix="choose another name")
    if iskeyword(cls) or cls in _own_names(_NEW / kind, words | {"cls": "_"}):
        raise RecipeError(f"`{cls}` would be its class, and is taken", key="NAME", fix="choose another name")
    for source in (_NEW / "common", _NEW / kind):
        _copy(source, folder, words)
    return folder


def group_of(kind: str) -> str:
    """Return the group of the entry point in a package of this kind, without `gym.`."""
    project = (_NEW / kind / f"pyproject.toml{_SUFFIX}").read_text(encoding="utf-8")
    return next(iter(re.findall(r'^\[project\.entry-points\."gym\.(\w+)"\]$', project, re.MULTILINE)))


def _taken(group: str, name: str) -> str:
    """Say what has the name already that a package, its module or its component would have; empty where nothing has."""
    dist, module = f"gym-{name}", f"gym_{name.replace('-', '_')}"
    if dist in installed().folders:
        return f"{dist} is installed"
    if dist in catalogue().values():
        return f"{dist} is a package of Gym"
    if module in sys.stdlib_module_names or find_spec(module) is not None:
        return f"there is a module {module}, which it would hide"
    if group == "commands" and name in cli.lazy:
        return "it is a command of gym-core"
    owner = next((entry.dist for entry in entries(group) if entry.name == name), catalogue().get(f"{group}/{name}"))
    return f"{owner} brings a component of that name to {group}, and recipes would have to choose" if owner else ""


def _own_names(source: Traversable, words: dict[str, str]) -> set[str]:
    """Return the names that the modules of a package define or import."""
    found: set[str] = set()
    for item in source.iterdir():
        if item.is_dir():
            found |= _own_names(item, words)
        elif item.name.removesuffix(_SUFFIX).endswith(".py"):
            found |= defined(Template(item.read_text(encoding="utf-8")).substitute(words).encode(), item.name)
    return found


def _copy(source: Traversable, into: Path, words: dict[str, str]) -> None:
    into.mkdir(parents=True, exist_ok=True)
    for item in source.iterdir():
        target = into / Template(item.name.removesuffix(_SUFFIX)).substitute(words)
        if item.is_dir():
            _copy(item, target, words)
        else:
            target.write_text(Template(item.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
