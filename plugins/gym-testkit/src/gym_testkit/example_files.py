"""The files that the examples of options name, there while something reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gym_testkit.bench import Bench


def files(options: Any) -> list[Path]:
    """Return the files of rows that options name, those of components among them too."""
    if isinstance(options, Mapping):
        return [file for value in options.values() for file in files(value)]
    if isinstance(options, list):
        return [file for value in options for file in files(value)]
    return [Path(options)] if isinstance(options, str) and options.endswith(".jsonl") else []


@contextmanager
def there(options: Mapping[str, Any], bench: Bench, content: list[dict[str, Any]]) -> Iterator[None]:
    """Work in a directory in which the files that the options name hold these rows."""
    before = Path.cwd()
    for file in files(options):
        (bench.root / file).parent.mkdir(parents=True, exist_ok=True)
        (bench.root / file).write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    os.chdir(bench.root)
    try:
        yield
    finally:
        os.chdir(before)
