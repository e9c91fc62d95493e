"""Whether trials learnt from the same rows: files of data may change while a study is not looking."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

MAKE_ROWS = (
    "data.",
    "model.",
    "algorithm.",
    "train.seed",
)  #: beginnings of the settings that decide what the examples are


def with_other_rows(records: Iterable[tuple[int, Mapping[str, Any]]]) -> list[int]:
    """Return the trials whose examples are not those of the first one with the same settings, by their `run.json`."""
    first: dict[str, str] = {}
    found = []
    for number, record in records:
        examples = (record.get("data") or {}).get("fingerprint")
        settings = {key: value for key, value in record.get("settings", {}).items() if key.startswith(MAKE_ROWS)}
        if examples and first.setdefault(json.dumps(settings, sort_keys=True), examples) != examples:
            found.append(number)
    return found
