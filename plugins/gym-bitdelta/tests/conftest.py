"""A tiny model, what became of it, and the deltas of that; each is made once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gym_core import Artifact
from gym_testkit.bench import Bench
from gym_testkit.caches import own_cache

sys.path.insert(0, str(Path(__file__).parent))  # the tests share `random_deltas`


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokenize and hash into a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GYM_CACHE", own_cache(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def tuned(bench: Bench) -> Callable[..., Artifact]:
    """Return what makes a model of a base: every weight is changed, or as `change(name, weight)` says."""

    def normal(name: str, weight: torch.Tensor) -> torch.Tensor:
        draws = torch.Generator().manual_seed(len(name))
        return weight + 0.02 * torch.randn(weight.shape, generator=draws)

    def make(base: Path, change: Callable[[str, torch.Tensor], torch.Tensor] = normal) -> Artifact:
        import shutil

        path = shutil.copytree(base, bench.path(f"{base.name}-{change.__name__}"))
        for file in path.glob("*.safetensors"):
            weights = {name: change(name, weight) for name, weight in load_file(file).items()}
            save_file(weights, file, {"format": "pt"})
        return Artifact(path, details={"base": str(base)})

    return make
