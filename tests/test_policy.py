"""Policies worth stating: how large the kernel is, what it may import, how long a file may be, what is never written."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / "gym-core", *sorted((ROOT / "plugins").glob("gym-*"))]
SOURCES = sorted(path for folder in FOLDERS for path in (folder / "src").glob("**/*.py"))
CORE = sorted((ROOT / "gym-core/src").glob("**/*.py"))


def test_the_kernel_stays_small():
    lines = [line for path in CORE for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) <= 2850, f"gym-core has {len(lines)} lines that are not blank"


def test_the_kernel_never_imports_heavy_libraries_or_the_facade():
    for path in CORE:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.split(".")[0] not in {"torch", "numpy", "transformers", "gym"}, (
                    f"{path.name} imports {name}"
                )


def test_no_file_is_longer_than_400_lines():
    long = {path.name: count for path in SOURCES if (count := len(path.read_text().splitlines())) > 400}
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
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
