"""Writes the names of LLaMA-Factory's keys into keys.txt: of a checkout, and of transformers' arguments as files of them.

    python tests/record_keys.py CHECKOUT TRAINING_ARGUMENTS.py...

Names are read, and nothing of either is imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path


def names(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each class of arguments and its fields, without those that no file can set."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            fields = [
                each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            ]
            found = [
                each.target.id for each in fields if "ClassVar" not in ast.unparse(each.annotation) and _settable(each)
            ]
            if found:
                yield f"{file.stem}.{node.name}", found


def _settable(field: ast.AnnAssign) -> bool:
    return not (isinstance(field.value, ast.Call) and any(keyword.arg == "init" for keyword in field.value.keywords))


if __name__ == "__main__":
    checkout, *others = map(Path, sys.argv[1:])
    files = [*sorted((checkout / "src/llamafactory/hparams").glob("*.py")), *others]
    lines = [f"{name}: {' '.join(keys)}" for file in files for name, keys in names(file)]
    (Path(__file__).parent / "keys.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
