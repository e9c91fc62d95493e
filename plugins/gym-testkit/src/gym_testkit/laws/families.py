"""Laws of families: a model directory that is there without a network."""

from __future__ import annotations

import json
from pathlib import Path

from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

laws = laws_of("families", "family")


@laws("brings a whole model directory")
def complete(brought: Brought, bench: Bench) -> None:
    """Configuration, tokenizer and weights without pickle are where `build` says."""
    path = Path(brought.sample().build())
    assert json.loads((path / "config.json").read_text(encoding="utf-8"))["model_type"]
    assert (path / "tokenizer.json").is_file()
    assert list(path.glob("*.safetensors")), "no weights in safetensors"
    assert not [*path.glob("*.bin"), *path.glob("*.pt"), *path.glob("*.pkl")], "weights in pickle"
