"""Who imports whom: no cycle between packages, subpackages of a package or files; a subpackage of the engine imports lower ones.

A subpackage is a folder of a package, or a module at its top level. Imports inside functions, and those for types alone, count.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / "gym-core", *sorted((ROOT / "plugins").glob("gym-*"))]
SUBPACKAGES = (
    "kernels",
    "attention",
    "memory",
    "quantization",
    "model",
    "compiled",
    "distributed",
    "generation",
    "loop",
    "checkpoints",
)  #: of gym_torch, from the lowest to the highest


def modules(package: Path) -> dict[str, Path]:
    """Return the files of an import package by module name."""
    names = {".".join(path.relative_to(package.parent).with_suffix("").parts): path for path in package.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


@functools.cache
def parsed(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Return the import statements of a file."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path, known: Mapping[str, object]) -> Iterator[str]:
    """Yield the modules that a file imports; what is imported from a package is a module where there is one of that name."""
    for node in parsed(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def subpackage(module: str) -> str:
    """Return the folder or top-level module of a package that a module belongs to; empty for the package itself."""
    return ".".join(module.split(".")[1:2])


def subpackages(package: Path) -> dict[str, set[str]]:
    """Return for each subpackage the subpackages that it imports."""
    known = modules(package)
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        inner = {subpackage(other) for other in imports(path, known) if other.split(".")[0] == package.name}
        graph.setdefault(subpackage(name), set()).update(inner - {subpackage(name), ""})
    graph.pop("", None)  # the package file says again what its subpackages have
    return graph


def sources() -> list[Path]:
    """Return the import packages of the tree."""
    return [init.parent for folder in FOLDERS for init in sorted((folder / "src").glob("*/__init__.py"))]


@pytest.mark.parametrize("package", sources(), ids=lambda package: package.name)
def test_no_cycle_between_subpackages(package: Path) -> None:
    graphlib.TopologicalSorter(subpackages(package)).prepare()


def files(package: Path) -> dict[str, set[str]]:
    """Return for each file, by module name, the files of the package that it imports."""
    known = modules(package)
    return {name: {*imports(path, known)} & known.keys() - {name} for name, path in known.items()}


@pytest.mark.parametrize("package", sources(), ids=lambda package: package.name)
def test_no_cycle_between_files(package: Path) -> None:
    graphlib.TopologicalSorter(files(package)).prepare()


def test_a_cycle_is_found(tmp_path: Path) -> None:
    package = tmp_path / "planted"
    for name, text in {
        "__init__": "",
        "low/__init__": "from planted.high import b",
        "high/__init__": "def f():\n    from planted import low",
        "subpackage/one": "from planted.subpackage import two",
        "subpackage/two": "if TYPE_CHECKING:\n    from planted.subpackage.one import g",
    }.items():
        file = package / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(subpackages(package)).prepare()
    for folder in ("low", "high"):
        (package / folder / "__init__.py").write_text("")
    parsed.cache_clear()
    graphlib.TopologicalSorter(subpackages(package)).prepare()
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(files(package)).prepare()


def test_a_subpackage_of_the_engine_imports_only_lower_ones() -> None:
    graph = subpackages(ROOT / "plugins/gym-torch/src/gym_torch")
    assert set(SUBPACKAGES) <= set(graph)
    folders = {name for name in graph if (ROOT / "plugins/gym-torch/src/gym_torch" / name).is_dir()}
    assert folders == set(SUBPACKAGES)
    upward = [
        (low, high) for place, low in enumerate(SUBPACKAGES) for high in SUBPACKAGES[place + 1 :] if high in graph[low]
    ]
    assert not upward


def declared(folder: Path, extras: bool = True) -> tuple[str, set[str]]:
    """Return the name of a package and what it declares to need, with its extras or without."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project.get("optional-dependencies", {}).values() if extras else ()
    lines = [*project.get("dependencies", ()), *(line for extra in optional for line in extra)]
    return project["name"], {re.split(r"[\s\[<>=!~;]", line, maxsplit=1)[0] for line in lines}


# The test kit looks at what is installed; it imports the packages of what it tests, where they are there.
@pytest.mark.parametrize(
    "folder", [one for one in FOLDERS if one.name != "gym-testkit"], ids=lambda folder: folder.name
)
def test_a_package_imports_only_what_it_declares(folder: Path) -> None:
    name, needs = declared(folder)
    owners = {package.name: package.parents[1].name for package in sources()}
    for package in (folder / "src").iterdir():
        for path in package.rglob("*.py"):
            used = {owners[other.split(".")[0]] for other in imports(path, {}) if other.split(".")[0] in owners}
            assert used <= {name, *needs}, (
                f"{path.relative_to(ROOT)} imports {', '.join(sorted(used - needs - {name}))}"
            )


def test_no_cycle_between_packages() -> None:
    ours = {folder.name for folder in FOLDERS}
    graph = {name: needs & ours for name, needs in map(declared, FOLDERS)}
    assert graph["gym-core"] == set()
    graphlib.TopologicalSorter(graph).prepare()


def reached(graph: Mapping[str, set[str]], name: str) -> set[str]:
    """Return what a package needs, and what that needs."""
    return graph[name].union(*(reached(graph, other) for other in graph[name]))


def test_the_picture_of_the_packages_is_what_they_declare() -> None:
    """Extras are not drawn, and an arrow may be left out where others lead there too."""
    ours = {folder.name for folder in FOLDERS} - {"gym-testkit"}  # the page names it below the picture
    real = {
        name: needs & ours for name, needs in (declared(folder, extras=False) for folder in FOLDERS) if name in ours
    }
    picture = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("flowchart BT")[1].split("```")[0]
    names = dict(re.findall(r'(\w+)\["([\w-]+)"\]', picture))
    drawn: dict[str, set[str]] = {name: set() for name in ours}
    for arrow in re.sub(r'\["[^"]*"\]', "", picture).split("\n"):
        start, _, ends = arrow.partition("-->")
        drawn[names.get(start.strip(), "gym-core")] |= {names[end.strip()] for end in ends.split("&") if end.strip()}
    assert {name: reached(drawn, name) for name in ours} == {name: reached(real, name) for name in ours}


def test_a_home_folder_is_looked_up_in_one_place() -> None:
    """`Path.expanduser` raises RuntimeError where there is none."""
    texts = {
        path.relative_to(ROOT): path.read_text(encoding="utf-8")
        for package in sources()
        for path in package.rglob("*.py")
    }
    found = {str(path) for path, text in texts.items() if re.search(r"(?<!os\.path)\.expanduser\(", text)}
    assert found == {"gym-core/src/gym_core/files.py"}


BARE = {"PATH", "PYTHONPATH", "HOME", "SYSTEMROOT"}  #: what a process is started with, at least


def test_importing_configurations_changes_no_environment_variable() -> None:
    code = """
import importlib, os
from gym_core.discovery import entries
from gym_core.kinds import KINDS

before = dict(os.environ)
kinds = [entry.name for entry in entries("kinds")]
modules = {entry.value.partition(":")[0] for kind in [*KINDS, *kinds] for entry in entries(kind)}
assert len(modules) > 10, modules
for module in sorted(modules):
    importlib.import_module(module)
assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())
"""
    bare = {
        name: value for name, value in os.environ.items() if name in BARE
    }  # else what is set already hides that it is set
    done = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


CALLED = re.compile(r"\bload_object\((?!\")[^()]*(\([^()]*\))?[^()]*\)\(")


@pytest.mark.parametrize("package", sources(), ids=lambda package: package.name)
def test_what_a_component_points_at_is_called_by_construct(package: Path) -> None:
    """Else an `__init__` that does not take what it is given is an error of whoever called it, and names no package."""
    calling = [path for path in package.rglob("*.py") if CALLED.search(path.read_text(encoding="utf-8"))]
    assert [path.name for path in calling if path.name != "component.py"] == []
