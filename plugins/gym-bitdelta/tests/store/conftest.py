from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gym_bitdelta.store import VariantStore
from gym_core import Artifact

sys.path.insert(0, str(Path(__file__).parent))  # the tests share `kills` and `full_disk`


@pytest.fixture
def store(tmp_path: Path):
    with VariantStore(tmp_path / "store") as made:
        yield made


@pytest.fixture
def artifact(tmp_path: Path):
    """Return a function that writes an artifact with this in its delta."""

    def made(text: str) -> Artifact:
        folder = tmp_path / "artifacts" / str(len(list(tmp_path.glob("artifacts/*"))))
        (folder / "tokenizer").mkdir(parents=True)
        (folder / "delta.safetensors").write_text(text)
        (folder / "tokenizer" / "added.json").write_text("{}")
        return Artifact(folder, "delta", "the-base", {"delta": "bitdelta", "layers": (1, 2)})

    return made
