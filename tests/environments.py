"""The environments of the sessions in `noxfile.py`: one workshop that holds everything, and clean ones that prove something.

Packages of the tree are installed as they lie there, with what they declare to need, in the tested versions (`constraints.txt`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nox

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / "gym-core", *sorted((ROOT / "plugins").glob("gym-*"))]
PACKAGES = {tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"]: folder for folder in FOLDERS}
CONSTRAINTS = str(ROOT / "constraints.txt")
TOOLS = ["pytest", "pytest-xdist", "hypothesis", "mypy", "types-PyYAML", "trl"]
WORKSHOP = ROOT / ".nox" / "workshop"


def metadata(name: str) -> dict:
    """Return what the `pyproject.toml` of a package says."""
    return tomllib.loads((PACKAGES[name] / "pyproject.toml").read_text())


def group(name: str, group: str = "test") -> list[str]:
    """Return a dependency group of a package (PEP 735)."""
    return metadata(name).get("dependency-groups", {}).get(group, [])


def extra(name: str, extra: str) -> list[str]:
    """Return what an extra of a package needs."""
    return metadata(name)["project"]["optional-dependencies"][extra]


def closure(*names: str) -> list[str]:
    """Return these packages and those of the tree that they rest on, dependencies first."""
    order: list[str] = []

    def visit(name: str) -> None:
        for requirement in metadata(name)["project"].get("dependencies", []):
            needed = re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]
            if needed in PACKAGES and needed not in order:
                visit(needed)
        if name not in order:
            order.append(name)

    for name in names:
        visit(name)
    return order


def install(
    session: nox.Session, names: list[str], *tools: str, python: str = "python", constraints: str = CONSTRAINTS
) -> None:
    """Install packages of the tree with what they need, in the tested versions; torch alone and first, hatchling before all.

    Python compiles what is imported, a third of what is installed, where it is imported first.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    pip = [python, "-m", "pip", "install", "-q", "--no-compile", "-c", constraints]
    external = python != "python"
    session.run(*pip, "hatchling", "editables", external=external)
    needs = [need for name in names for need in metadata(name)["project"].get("dependencies", [])]
    if any(re.split(r"\W", need)[0] == "torch" for need in [*needs, *tools]):
        session.run(*pip, "torch", external=external)
    paths = [part for name in names for part in ("-e", str(PACKAGES[name]))]
    session.run(*pip, "--no-build-isolation", *paths, *tools, external=external)


def workshop(session: nox.Session) -> str:
    """Make or update the environment with every package and tool; return its Python."""
    folder = "Scripts" if sys.platform == "win32" else "bin"
    python = str(WORKSHOP / folder / "python")
    wanted = [*sorted(str(folder / "pyproject.toml") for folder in FOLDERS), CONSTRAINTS, __file__]
    stamp = hashlib.sha256(b"".join(Path(path).read_bytes() for path in wanted)).hexdigest()
    if not (WORKSHOP / "stamp").exists() or (WORKSHOP / "stamp").read_text() != stamp:
        if not Path(python).exists():
            session.log("making the environment; the first time this takes a few minutes")
            session.run(sys.executable, "-m", "venv", str(WORKSHOP), external=True)
        needs = {need for name in PACKAGES for need in group(name) if need not in PACKAGES}
        install(session, list(PACKAGES), *TOOLS, *sorted(needs), python=python)
        (WORKSHOP / "stamp").write_text(stamp)
    os.environ["PATH"] = f"{WORKSHOP / folder}{os.pathsep}{os.environ['PATH']}"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the asserts of 6,000 tests would be rewritten in every process
    return python


def in_workshop(session: nox.Session, *command: str) -> None:
    """Run Python in the workshop with these arguments and those of the session."""
    session.run(workshop(session), *command, *session.posargs, external=True)


def in_own_environment(
    session: nox.Session,
    package: str,
    needs: list[str],
    tests: Iterable[str] = (),
    check: str = "",
    without: str = "",
    constraints: str = CONSTRAINTS,
) -> None:
    """Test a package in the environment of the session.

    Args:
        session: with an environment of its own.
        package: is installed with the test kit.
        needs: packages of the tree, and requirements, beside it.
        tests: names of its test files; by default all.
        check: statement of Python that fails where something is missing for which tests would be skipped.
        without: a distribution to uninstall: of another build than the torch at hand, it breaks imports.
        constraints: file of versions.

    """
    ours = [need for need in needs if need in PACKAGES]
    others = [need for need in needs if need not in PACKAGES]
    install(session, closure(package, "gym-testkit", *ours), "pytest", *others, constraints=constraints)
    if without:
        session.run("python", "-m", "pip", "uninstall", "-q", "-y", without)
    if check:
        session.run("python", "-c", check)
    folder = PACKAGES[package] / "tests"
    files = [str(folder / f"test_{name}.py") for name in tests] or [str(folder)]
    session.run("python", "-m", "pytest", *files, "-p", "no:cacheprovider", *session.posargs)


@contextmanager
def scratch() -> Iterator[str]:
    """Yield a folder for what tests write, in memory where there is plenty: a run of training waits for the disk fifty times.

    The tests of the tree leave one gigabyte or two.
    """
    memory = Path("/dev/shm")
    usable = (
        memory.is_dir() and shutil.disk_usage(memory).free > 6 << 30 and not os.statvfs(memory).f_flag & os.ST_NOEXEC
    )
    with tempfile.TemporaryDirectory(prefix="gym-", dir=memory if usable else None) as folder:
        Path(folder).chmod(0o711)  # the sandbox runs programs as another user, who has to get there
        yield folder


def beside(session: nox.Session, script: str, variable: str, *arguments: str) -> None:
    """Run a script in the workshop, told of the Python of this session's environment by a variable."""
    python = Path(session.bin) / ("python.exe" if sys.platform == "win32" else "python")
    given = arguments or session.posargs
    session.run(workshop(session), script, *given, env={variable: str(python)}, external=True)
