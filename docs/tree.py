"""What the packages of the tree say of themselves, as the generated pages read it (`docs/reference.py`)."""

from __future__ import annotations

import ast
import inspect
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from gym_core.component import Component, Config, load_object
from gym_core.discovery import PREFIX

ROOT = Path(__file__).parents[1]
BAR = "\\|"  #: in a cell of a table


def default(field: FieldInfo) -> str:
    """Write what an option is where a recipe leaves it out."""
    return "required" if field.is_required() else f"`{plain(field.get_default(call_default_factory=True))}`"


def table(base: type[Config]) -> list[str]:
    """Return the lines of a table of the options of a section or a component."""
    options = [
        f"| `{key}` | {default(field)} | {' '.join((field.description or '').split()).replace('|', BAR)} |"
        for key, field in base.model_fields.items()
    ]
    return ["| Option | Default | Meaning |", "|---|---|---|", *options]


def paper(project: dict[str, Any], name: str) -> str:
    """Return a link to where the method of a component was published, or nothing."""
    url = project.get("urls", {}).get(f"{name} paper", "")
    return f"[{url.replace('https://arxiv.org/abs/', 'arXiv:')}]({url})" if url else ""


def plain(value: object) -> str:
    """Write a default as a recipe would."""
    if isinstance(value, Component):
        return next(name for name, point in points(value.kind).items() if point.endswith(f":{type(value).__name__}"))
    value = value.model_dump(mode="json") if isinstance(value, Config) else value
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()


def components(kind: str) -> dict[str, tuple[dict[str, Any], type[Component]]]:
    """Return the project and the class of every component of a kind in the tree, by name."""
    found = {}
    for project in projects():
        for name, value in project.get("entry-points", {}).get(f"{PREFIX}{kind}", {}).items():
            found[name] = project, load_object(value)
    return dict(sorted(found.items()))


def points(kind: str) -> dict[str, str]:
    """Return the components of a kind in the tree, as `module:Class` by name."""
    return {
        k: v for project in projects() for k, v in project.get("entry-points", {}).get(f"{PREFIX}{kind}", {}).items()
    }


def projects() -> list[dict[str, Any]]:
    """Return the `project` tables of all packages."""
    paths = [ROOT / "gym-core/pyproject.toml", *sorted((ROOT / "plugins").glob("*/pyproject.toml"))]
    return [tomllib.loads(path.read_text(encoding="utf-8"))["project"] for path in paths]


def added_kinds() -> dict[str, type[Component]]:
    """Return the kinds that packages of the tree add to those of the kernel."""
    return {kind: load_object(value) for kind, value in points("kinds").items()}


def declarations(base: type[Component]) -> list[str]:
    """Return the class variables that a kind adds, with their defaults and meaning."""
    source = inspect.getsource(base)
    (found,) = ast.parse(source).body
    assert isinstance(found, ast.ClassDef)
    return [
        f"* `{ast.get_source_segment(source, line)}`: {' '.join(said.value.value.split())}"
        for line, said in pairwise(found.body)
        if isinstance(line, ast.AnnAssign) and "ClassVar" in ast.unparse(line.annotation)
        if isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant) and isinstance(said.value.value, str)
    ]
