"""What `nox -s minimal` proves of gym-core alone in a clean environment: small, no torch, and useful all the same."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

MEGABYTES = 40
TOOLS = {"pip", "setuptools", "wheel", "hatchling", "editables", "pathspec", "trove-classifiers", "virtualenv"}


def gym(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run([sys.executable, "-m", "gym_core.cli", *arguments], capture_output=True, text=True)


def installed_bytes() -> int:
    """Sum the files of every distribution that came with gym-core; the tools of the build do not count."""
    wanted = [dist for dist in distributions() if dist.name.lower() not in TOOLS]
    files = [Path(str(file.locate())) for dist in wanted for file in dist.files or ()]
    source = [path for path in Path(__file__).parents[1].glob("gym-core/src/**/*") if path.is_file()]
    return sum(path.stat().st_size for path in {*files, *source} if path.exists() and path.suffix != ".pyc")


def main() -> None:
    """Check everything; an assertion that fails says what is wrong."""
    size = installed_bytes() / 2**20
    print(f"gym-core with everything it needs: {size:.1f} MiB")
    assert size < MEGABYTES, f"{size:.1f} MiB is more than {MEGABYTES}"
    for heavy in ("torch", "numpy", "transformers"):
        assert importlib.util.find_spec(heavy) is None, f"{heavy} came along"
    for arguments in (["--help"], ["--plugins", "list"], ["plugins", "list", "--json"]):
        done = gym(*arguments)
        assert done.returncode == 0, f"gym {' '.join(arguments)}: {done.stderr}"
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text("model: tiny\nalgorithm: sft\nadapter: lora\ndata: alpaca_en_demo\n")
        for command in ("validate", "train"):
            done = gym(command, str(recipe))
            assert done.returncode == 3, f"gym {command}: {done.returncode} {done.stderr}"
            for package in ("gym-torch", "gym-sft", "gym-adapters", "gym-data"):
                assert f"pip install {package}" in done.stderr, f"gym {command} does not name {package}:\n{done.stderr}"
    print("gym-core alone: 1 passed")


if __name__ == "__main__":
    main()
