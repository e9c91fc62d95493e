"""Policies worth stating: how large the kernel is, what it may import, how long a file may be, what is never written."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from gym_core.kinds import KINDS
from gym_testkit import warm

sys.path.insert(0, str(Path(__file__).parent))
from class_questions import Sources

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / "gym-core", *sorted((ROOT / "plugins").glob("gym-*"))]
SOURCES = sorted(path for folder in FOLDERS for path in (folder / "src").glob("**/*.py"))
CORE = sorted((ROOT / "gym-core/src").glob("**/*.py"))


def test_the_kernel_stays_small():
    lines = [line for path in CORE for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) <= 2550, f"gym-core has {len(lines)} lines that are not blank"


def test_the_code_of_the_kernel_names_no_package_and_no_other_project():
    """Docstrings may point at a contract; what the code does depends on no package but what it finds installed."""
    packages = "|".join(folder.name.removeprefix("gym-") for folder in FOLDERS if folder.name != "gym-core")
    telling = re.compile(rf"\bgym[-_]({packages})\b|llama.?factory|hugging|model_name_or_path", re.IGNORECASE)
    assert telling.search("pip install gym-sft") and not telling.search("gym-core")
    for path in CORE:
        tree = ast.parse(path.read_text())
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
                assert not telling.search(node.value), f"{path.name}:{node.lineno} says {node.value!r}"
            if isinstance(node, ast.ImportFrom | ast.Import):
                assert not telling.search(ast.unparse(node)), f"{path.name}:{node.lineno}"


def test_the_kernel_never_imports_heavy_libraries_or_the_facade():
    for path in (path for path in CORE if path.parent.name != "zoo"):  # which is the facade under another name
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.split(".")[0] not in {"torch", "numpy", "transformers", "gym"}, (
                    f"{path.name} imports {name}"
                )


def test_no_file_is_longer_than_300_lines():
    long = {path.name: count for path in SOURCES if (count := len(path.read_text().splitlines())) > 300}
    assert not long


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"\btorch\.load\(|\bpickle\.loads?\(", "no pickle"),
        (r"shell\s*=\s*True|os\.system\(", "no shell strings"),
        (r"trust_remote_code\s*=\s*True", "remote code runs where a recipe says so, never by a literal"),
        (r"\byaml\.load\(", "the safe loader alone"),
        (r"NotImplementedError|\bTODO\b|\bFIXME\b", "what is here works"),
    ],
)
def test_what_is_never_written(pattern, why):
    found = [
        f"{path.name}: {line.strip()}"
        for path in SOURCES
        for line in path.read_text().splitlines()
        if re.search(pattern, line)
    ]
    assert not found, why


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_package_has_what_a_package_needs(folder):
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == folder.name and project["license"] == "Apache-2.0" and project["description"]
    assert project["requires-python"] == ">=3.11"
    assert (folder / "README.md").exists() and list(folder.glob("tests/**/test_*.py"))
    if folder.name != "gym-core":
        assert any(need.startswith("gym-core>=") for need in project["dependencies"])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_importing_a_package_imports_nothing_heavy(folder):
    module = folder.name.replace("-", "_")
    heavy = ("torch", "numpy", "transformers", "datasets", "peft")
    probe = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = warm.run("-c", probe, light=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_exported_name_is_that_of_a_module(folder):
    """Once such a module is imported, it stands in the place of what the package exports under its name."""
    module = folder.name.replace("-", "_")
    done = warm.run("-c", f"import {module}; print(*getattr({module}, '__all__', ()))", light=True)
    assert done.returncode == 0, done.stderr
    modules = {path.stem for path in (folder / "src" / module).iterdir() if path.is_dir() or path.suffix == ".py"}
    assert not modules & {*done.stdout.split()}


def sources(texts: Mapping[str, str], kinds: Iterable[str]) -> Sources:
    """Return modules with the contracts of the kinds: what `docs/kinds.md` says that they hand to each other or are asked."""
    handed = re.findall(r"^### (?:Under gym-[\w-]+: )?`([\w.]+)`$", (ROOT / "docs/kinds.md").read_text(), re.MULTILINE)
    return Sources(texts, frozenset(kinds), frozenset(handed))


def test_nobody_asks_for_the_class_of_a_component_or_of_what_it_builds():
    """A stranger's component would get less: what must be known is declared on the kind, or on what the kind promises."""
    texts = {}
    for path in SOURCES:
        root = next(folder / "src" for folder in FOLDERS if path.is_relative_to(folder))
        stub = path.with_suffix(".pyi")  # says what a module offers that imports it on first use
        text = path.read_text() + "\n" + (stub.read_text() if stub.exists() else "")
        texts[".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")] = text
    projects = [tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in FOLDERS]
    added = [entry for each in projects for entry in each.get("entry-points", {}).get("gym.kinds", {}).values()]
    found = sources(texts, [*(f"gym_core.kinds.{base.__name__}" for base in KINDS.values()), *added])
    assert len(found.guarded) > 200, "it sees no components"
    assert not found.questions()


PLANTED = {
    "gym_core.component": "class Component: ...",
    "gym_core.kinds": "from gym_core.component import Component\nclass Optimizer(Component): ...",
    "ours": "from ours.config import Ours",
    "ours.config": """
from gym_core.kinds import Optimizer
class Ours(Optimizer):
    target = "ours.code:Built"
    def same(self, other): return isinstance(other, Ours)
class Made(Optimizer):
    target = "ours.code:made"
""",
    "ours.code": """
from typing import Protocol
class Base: ...
class Built(Base): ...
class Other: ...
def made() -> Other: ...
class Offers(Protocol): ...
class Value: ...
""",
    "engine": """
import ours.code
from gym_core.kinds import Optimizer
from ours import Ours as Renamed
from ours.code import Base, Built, Offers, Other, Value
def asks(x):
    isinstance(x, Optimizer) or isinstance(x, Value) or type(x) is int
    isinstance(x, Renamed)
    issubclass(x, int | Base)
    isinstance(x, (str, ours.code.Other))
    type(x) is Built
    x.__class__ in {Other, Value}
    isinstance(x, Offers)
    match x:
        case Built(): ...
""",
}


def test_it_is_noticed_where_somebody_asks():
    asked = sources(PLANTED, ["gym_core.kinds.Optimizer"]).questions()
    named = [("config.Ours", 8), ("code.Base", 9), ("code.Other", 10), ("code.Built", 11), ("code.Other", 12)]
    named += [("code.Offers", 13), ("code.Built", 15)]
    assert asked == sorted(f"engine asks for ours.{name}, line {line}" for name, line in named)


def files_of_tests() -> list[Path]:
    """Return the files of all tests."""
    return [path for base in ("", "gym-core/", "plugins/*/") for path in ROOT.glob(f"{base}tests/**/*.py")]


def test_nothing_changes_the_class_of_what_is_there():
    """A module of ours stands in the place of another one and holds it; the other stays what it is."""
    found = []
    texts = {path: path.read_text() for path in (*SOURCES, *files_of_tests())}
    for path, text in ((path, text) for path, text in texts.items() if "__class__" in text):
        for node in ast.walk(ast.parse(text)):
            places = node.targets if isinstance(node, ast.Assign) else []
            if any(
                isinstance(each, ast.Attribute) and each.attr == "__class__" for one in places for each in ast.walk(one)
            ):
                found.append(f"{path.relative_to(ROOT)}: {node.lineno}")
    assert not found


def test_tests_use_no_private_names_of_the_tree():
    """What a test needs is public; what a package keeps to itself may change without one noticing."""
    code = "\n".join(path.read_text() for path in SOURCES)
    own = set(re.findall(r"(?:\bdef |\bclass |\bself\.|^)(_[a-z]\w*)", code, re.MULTILINE | re.IGNORECASE))
    found = []
    texts = {path: path.read_text() for path in files_of_tests()}
    suspects = {path: text for path, text in texts.items() if own & set(re.findall(r"\b_[a-zA-Z]\w*", text))}
    assert len(suspects) > 20, "it looks at no test"
    for path, text in suspects.items():
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in {"self", "cls", "super()", "os"}:
                names = [node.attr]
            found += [f"{path.relative_to(ROOT)}: {name}" for name in names if name in own and name[:2] != "__"]
    assert not found
