"""Write the generated pages: docs/hooks.md, docs/kinds.md, and the catalogue that error messages use.

Run with `nox -s reference`; a test fails when what is written is not what the code says.
"""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

from gym_core.component import Component, load_object
from gym_core.discovery import PREFIX
from gym_core.hooks import Seams
from gym_core.kinds import KINDS
from gym_core.sections import SECTION_OF, SLOTS

ROOT = Path(__file__).parents[1]


def hooks() -> str:
    """Return docs/hooks.md: every seam with its exact signature."""
    lines = [
        "# Hooks",
        "",
        "A run calls four hooks, in this order. The first implementation that returns something other than `None`",
        "decides; the default builds the component that the recipe named. Observe or wrap a seam with",
        "`@hookimpl(wrapper=True)` around a `yield`, replace it with `@hookimpl`. An implementation may leave out",
        "arguments it does not need. The entry point stands in `gym.hooks`, and the plugin is active only in recipes",
        "that name it: `hooks: [my-hooks]`.",
        "",
    ]
    for name, function in seams().items():
        lines += [f"## `{signature(name, function)}`", "", inspect.getdoc(function) or "", ""]
    return "\n".join(lines)


def seams() -> dict[str, object]:
    """Return the hook specifications in the order of a run."""
    return {name: function for name, function in vars(Seams).items() if inspect.isfunction(function)}


def signature(name: str, function: object) -> str:
    """Write a hook as an implementation declares it."""
    shown = inspect.signature(function)  # type: ignore[arg-type]
    parameters = [parameter for parameter in shown.parameters.values() if parameter.name != "self"]
    returned = f" -> {shown.return_annotation}" if shown.return_annotation is not inspect.Signature.empty else ""
    return f"{name}({', '.join(f'{p.name}: {p.annotation}' for p in parameters)}){returned}"


def kinds() -> str:
    """Return docs/kinds.md: every kind with its group, section, contract and declarations."""
    lines = [
        "# Kinds",
        "",
        "A component is a pydantic class that subclasses the base class of its kind and stands in that kind's",
        "entry-point group. `build` imports what `target` names and calls it with the configuration and the context given here.",
        "",
    ]
    for kind, base in {**KINDS, **added_kinds()}.items():
        section = SECTION_OF.get(kind)
        default = f", default `{SLOTS[section].default}`" if section and SLOTS[section].default else ""
        where = f"section `{section}`{default}" if section else "named inside other components"
        package = base.__module__.partition(".")[0]
        lines += [f"## `{kind}`: `{package}.{base.__name__}`", "", f"Group `{PREFIX}{kind}`, {where}.", ""]
        lines += [inspect.getdoc(base) or "", ""]
        declared = declarations(base)
        if declared:
            lines += ["Declared as data on the class:", "", *declared, ""]
    return "\n".join(lines)


def added_kinds() -> dict[str, type[Component]]:
    """Return the kinds that packages of the tree add to those of the kernel."""
    found = {}
    for path in sorted((ROOT / "plugins").glob("*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        for kind, value in project.get("entry-points", {}).get(f"{PREFIX}kinds", {}).items():
            found[kind] = load_object(value)
    return found


def declarations(base: type[Component]) -> list[str]:
    """Return the class variables that a kind adds, with their defaults and meaning."""
    source = inspect.getsource(base).splitlines()
    found = []
    for number, line in enumerate(source):
        name, colon, rest = line.strip().partition(": ClassVar")
        if colon and name.isidentifier() and name != "kind":
            doc = source[number + 1].strip().strip('"') if number + 1 < len(source) else ""
            found.append(f"* `{name}{colon}{rest}`: {doc}")
    return found


def catalogue() -> str:
    """Return the distribution of every first-party component and flat selector, from the packages' own metadata."""
    lines = []
    for path in sorted([ROOT / "gym-core/pyproject.toml", *(ROOT / "plugins").glob("*/pyproject.toml")]):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        for group, points in project.get("entry-points", {}).items():
            if group.startswith(PREFIX):
                lines += [f"{group.removeprefix(PREFIX)}/{name} {project['name']}" for name in points]
    head = "# kind/name distribution: where the first-party components live. Written by `nox -s reference`, held by a test."
    return "\n".join([head, *sorted(lines), ""])


PAGES = {
    ROOT / "docs/hooks.md": hooks,
    ROOT / "docs/kinds.md": kinds,
    ROOT / "gym-core/src/gym_core/catalogue.txt": catalogue,
}

if __name__ == "__main__":
    for page, write in PAGES.items():
        page.write_text(write(), encoding="utf-8")
