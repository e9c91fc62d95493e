"""A model of a few million numbers that knows its tasks, and what quantizers make of it; each is made once."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from gym_core import Artifact, Run, load_recipe
from gym_core.loading import load_component
from gym_core.record import RunRecord
from gym_testkit.caches import own_cache
from gym_tiny.family import MODEL
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer

SAMPLES = {"calibration_samples": 48, "holdout_samples": 64}
#: Most tokens of a task: rows are as long as the longest of them, and one in ten, a tool call, has 150.
CUTOFF = 48

Quantize = Callable[..., Path]


def new_run(output: Path, model: Path, **more: Any) -> Run:
    """Return a run in a new directory, of short tasks."""
    output.mkdir(parents=True)
    data = {"sources": [{"name": "tiny-tasks", "count": 200}], "cutoff": CUTOFF}
    recipe = {"model": str(model), "data": data, "algorithm": "sft", "output": str(output), **more}
    return Run(load_recipe(recipe), output, RunRecord(output / "run.json"))


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the packaged model, in fp32."""
    path = tmp_path_factory.mktemp("models") / "plain"
    AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).save_pretrained(path)
    copy_tokenizer(MODEL, path)
    return path


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokenize into a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GYM_CACHE", own_cache(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def quantized(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Quantize:
    """Return what makes the checkpoint of a quantizer, by name and options."""
    root = tmp_path_factory.mktemp("quantized")

    @functools.cache
    def make(name: str, model: Path, options: str) -> Path:
        into = root / f"{len(list(root.iterdir()))}-{name}"
        quantizer = load_component("quantizers", name)[1](**SAMPLES | json.loads(options))
        return quantizer.build().quantize(new_run(into, model), Artifact(model), into / "quantized").path

    def named(name: str, model: Path = plain, **options: Any) -> Path:
        return make(name, model, json.dumps(options if name == "fp8" else {"group_size": 64} | options))

    return named


@pytest.fixture
def run_in() -> Callable[..., Run]:
    """Return what makes a run of a model in a new directory."""
    return new_run


@pytest.fixture
def told() -> Callable[[Path], dict[str, Any]]:
    """Return what reads the figures beside a checkpoint."""
    return lambda path: json.loads((path / "quantization.json").read_text())
