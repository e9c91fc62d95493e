"""Small models of images and text, and rows with images, made once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gym_testkit import caches

sys.path.insert(0, str(Path(__file__).parent))  # under `--import-mode=importlib` tests cannot import their neighbours
import whole_torchvision  # noqa: F401  before transformers looks for it
from image_rows import ROWS
from media_rows import written

from gym_testkit.vision_models import small_model


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GYM_CACHE", caches.own_cache(tmp_path / "cache"))


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A function that returns the folder of a small model of a family."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = small_model(family, tmp_path_factory.mktemp(family))
        return made[family]

    return make


@pytest.fixture(scope="session")
def videos(tmp_path_factory) -> Path:
    """A folder of two videos: `moving.mp4` of 3 seconds at 8 frames a second, and `short.avi` of 3 frames."""
    folder = tmp_path_factory.mktemp("videos")
    written(folder / "moving.mp4", 24, 8, (64, 96))
    written(folder / "short.avi", 3, 4, (32, 32))
    return folder


@pytest.fixture(scope="session")
def rows(tmp_path_factory) -> Path:
    """A file of rows with images beside it."""
    folder = tmp_path_factory.mktemp("rows")
    Image.new("RGB", (90, 60), (250, 10, 10)).save(folder / "red.png")
    Image.new("RGB", (40, 70), (10, 10, 250)).save(folder / "blue.jpg")
    noise = np.random.default_rng(0).integers(0, 256, (64, 128, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder / "rows.jsonl"
