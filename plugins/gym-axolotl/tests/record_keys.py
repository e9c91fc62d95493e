"""Writes the names of axolotl's keys to keys.txt, read from the classes of its source without running it.

    python record_keys.py CHECKOUT

A class that is the value of a key is written as `key.name`, where a file is read so.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = "AxolotlInputConfig"
WITHIN = {"trl": "TRLConfig", "special_tokens": "SpecialTokensConfig"}  #: keys that hold others, by their class
INTEGRATIONS = ("liger", "cut_cross_entropy", "swanlab")


def fields(classes: dict[str, ast.ClassDef], name: str) -> set[str]:
    """Return the keys of a class and of those that it is made of, under the names that files use."""
    found: set[str] = set()
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            found |= fields(classes, base.id)
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id != "model_config":
            found.add(node.target.id)
            calls = [call for call in ast.walk(node) if isinstance(call, ast.keyword) and call.arg == "alias"]
            found |= {call.value.value for call in calls if isinstance(call.value, ast.Constant)}
    return found


def main() -> None:
    """Write the file."""
    checkout = Path(sys.argv[1])
    classes: dict[str, ast.ClassDef] = {}
    for path in sorted((checkout / "src/axolotl/utils/schemas").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes |= {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    keys = {key for key in fields(classes, ROOT) if key not in WITHIN}
    keys |= {f"{key}.{name}" for key, inner in WITHIN.items() for name in fields(classes, inner)}
    for name in INTEGRATIONS:
        tree = ast.parse((checkout / f"src/axolotl/integrations/{name}/args.py").read_text(encoding="utf-8"))
        inner = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        keys |= {key for each in inner for key in fields(inner, each)}
    (Path(__file__).parent / "keys.txt").write_text("\n".join(sorted(keys)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
