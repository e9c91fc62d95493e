"""Rows of texts that belong together, and recipes over them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from gym_testkit.bench import Bench

#: Two equal anchors, two equal positives, none to two negatives.
ROWS: list[dict[str, Any]] = [
    {"anchor": "one", "positive": "uno", "negatives": ["due", "a much longer text than the others"]},
    {"anchor": "one", "positive": "eins", "negatives": ["uno mattino"]},
    {"anchor": "two and more", "positive": "due"},
    {"anchor": "three", "positive": "sette", "negatives": ["uno"]},
    {"anchor": "3", "positive": "sette"},
    {"anchor": "four", "positive": "quattro stagioni", "negatives": ["one"]},
]
SCORED: list[dict[str, Any]] = [
    {"anchor": "one", "positive": "uno", "score": 1},
    {"anchor": "two", "positive": "sette stagioni", "score": 0.2},
    {"anchor": "three", "positive": "three", "score": 0.9},
    {"anchor": "four", "positive": "four things", "score": 0.2},
    {"anchor": "five", "positive": "six", "score": -0.5},
    {"anchor": "five", "positive": "5", "score": 0.4},
]


def recipe(
    bench: Bench, rows: list[dict[str, Any]], train: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """Return a small recipe over rows, with options of the algorithm."""
    return {**bench.recipe({"name": "embedding", **options}, **(train or {})), "data": str(bench.file(rows))} | {
        "model": str(bench.model())
    }


def closing(bench: Bench, tmp_path: Path) -> Path:
    """Return a model whose tokenizer ends each text, as that of Qwen3-Embedding does."""
    path = tmp_path / "closing"
    shutil.copytree(bench.model(), path)
    told = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    end = next(token for token in told["added_tokens"] if token["special"])
    template = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end["content"], "type_id": 0}}]
    told["post_processor"] = {
        "type": "TemplateProcessing",
        "single": template,
        "pair": [*template, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {end["content"]: {"id": end["content"], "ids": [end["id"]], "tokens": [end["content"]]}},
    }
    (path / "tokenizer.json").write_text(json.dumps(told), encoding="utf-8")
    return path
