"""A workbench for laws and tests: tiny models, tiny data and tiny runs, all under one directory.

It knows recipes and what a run leaves behind; it does not know torch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gym_core import Outcome, Run, execute, load_recipe
from gym_core.record import RunRecord
from gym_testkit import rows, tiny, warm, weights

if TYPE_CHECKING:
    from gym_data.kinds import DataAlgorithm

#: Loop settings under which a tiny run is quick and says everything it does.
QUICK = {"precision": "fp32", "plot": False, "log_every": 1, "epochs": 1000, "max_steps": 2, "learning_rate": 0.01}
#: Suffixes of files that stand beside weights and are not counted as such.
TEXT = {".json", ".jinja", ".md", ".txt", ".model"}


@dataclass(frozen=True)
class Finished:
    """A run that ended: what it made, and what it wrote down on the way."""

    outcome: Outcome
    metrics: list[dict[str, Any]]

    def series(self, key: str) -> list[float]:
        """Return the values of a metric, step by step."""
        return [float(line[key]) for line in self.metrics if key in line]


class Bench:
    """Makes what a law needs under `root`."""

    def __init__(self, root: Path) -> None:
        """Work under an existing directory."""
        self.root = root

    def path(self, name: str) -> Path:
        """Return a path under the root that nothing uses yet."""
        path = self.root / name
        assert not path.exists(), f"{name} is in use"
        return path

    def model(self, seed: int = 0) -> Path:
        """Return the directory of the tiny random model of this seed."""
        path = self.root / f"model-{seed}"
        return path if path.exists() else tiny.write_model(path, seed)

    def model_of(self, hidden: int, middle: int) -> Path:
        """Return the directory of a random model whose states and feed-forward layers have these sizes."""
        path = self.root / f"model-{hidden}-{middle}"
        return path if path.exists() else tiny.write_model(path, hidden=hidden, middle=middle)

    def model_for(self, tokens: Sequence[str]) -> Path:
        """Return the directory of a tiny model whose tokenizer has these special tokens too (`Template.needs`)."""
        return tiny.write_model(self.path("model-extra"), extra=tokens)

    def model_with(self, tensors: Mapping[str, weights.Tensor], name: str = "given") -> Path:
        """Return a model directory that holds these weights in place of the tiny model's."""
        path = self.path(f"model-{name}")
        shutil.copytree(self.model(), path)
        weights.write(path / "model.safetensors", tensors)
        return path

    def data(self, shape: str, even: bool = False, alike: bool = False) -> Path:
        """Return a file of rows of this shape (`Algorithm.rows`); `even` makes all of one length: no padding.

        With `alike` every second question begins with the same words.
        """
        return self.file(rows.make(shape, even, alike))

    def file(self, content: Sequence[Mapping[str, Any]]) -> Path:
        """Return a file that holds these rows as JSON lines."""
        text = "".join(json.dumps(row) + "\n" for row in content)
        path = self.root / f"rows-{hashlib.sha256(text.encode()).hexdigest()[:8]}.jsonl"
        path.write_text(text, encoding="utf-8")
        return path

    def shrink(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Return a recipe with everything that an author wrote but the tiny model, tiny data and a few quick steps."""
        loaded = load_recipe(recipe)
        small = dict(recipe)
        model = small["model"]
        small["model"] = {**model, "path": str(self.model())} if isinstance(model, dict) else str(self.model())
        small["data"] = str(self.data(cast("DataAlgorithm", loaded.algorithm).rows))
        kept = {key: value for key, value in dict(small.get("train") or {}).items() if key not in QUICK}
        small["train"] = kept | QUICK
        return small

    def recipe(self, algorithm: Any, shape: str = "conversation", even: bool = False, **train: Any) -> dict[str, Any]:
        """Return a small recipe for an algorithm: its name, or a mapping with options."""
        return {
            "model": str(self.model()),
            "data": str(self.data(shape, even)),
            "algorithm": algorithm,
            "train": QUICK | {"batch_size": 8} | train,
        }

    def run(self, recipe: Mapping[str, Any], name: str = "run", **train: Any) -> Finished:
        """Carry out a recipe in this process, in an output directory of this name; `train` replaces loop settings."""
        output = self.path(name)
        settings = dict(recipe.get("train") or {}) | train
        outcome = execute(load_recipe({**recipe, "train": settings, "output": str(output)}))
        return self.finished(outcome)

    def trained(self, model: Path, name: str = "run") -> Run:
        """Return a run that has made this model of the data of a small recipe, for what comes after training."""
        output = self.path(name)
        output.mkdir()
        recipe = self.recipe("sft") | {"model": str(model), "output": str(output)}
        return Run(load_recipe(recipe), output, RunRecord(output / "run.json"))

    def finished(self, outcome: Outcome) -> Finished:
        """Read what a run wrote down."""
        file = outcome.output / "metrics.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return Finished(outcome, [json.loads(line) for line in lines])

    def gym(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run the command line in a process of its own, forked from a warm one."""
        return warm.run("-m", "gym_core.cli", *arguments, cwd=self.root, timeout=timeout)


def fingerprint(directory: Path, suffix: str = "") -> dict[str, str]:
    """Return the SHA-256 of every file under a directory whose name ends so."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob(f"*{suffix}"))
        if path.is_file()
    }


def weight_bytes(directory: Path) -> int:
    """Return the bytes of the files that hold weights."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file() and path.suffix not in TEXT)
