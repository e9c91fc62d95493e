"""Counts the example files of a LLaMA-Factory checkout that are accepted, and those that are refused by reason.

    python benchmarks/llamafactory_files.py CHECKOUT [--files]

Left out are launcher configurations and lists of tokens: YAML without `model_name_or_path` and without the keys of a v1 file.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gym_core import GymError, load_recipe
from gym_core.errors import Problem
from gym_core.sections import Findings
from gym_llamafactory import exporting, serving

V1 = ("model", "train_dataset")  #: either is in every v1 file


def files(checkout: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yield the dialect, path and keys of each example."""
    for path in sorted((checkout / "examples").rglob("*.y*ml")):
        keys = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(keys, dict):
            continue
        if path.is_relative_to(checkout / "examples" / "v1"):
            yield "v1", path, keys
        elif "model_name_or_path" in keys:
            yield "v0", path, keys


def refused(path: Path, keys: dict[str, Any]) -> list[Problem]:
    """Return why a file is refused by the command that it is for; nothing where it is accepted."""
    try:
        check(path, keys)
    except GymError as error:
        return list(error.problems)
    return []


def check(path: Path, keys: dict[str, Any]) -> None:
    """Read a file as its command does. Raises GymError where it is refused."""
    of_command = exporting if "export_dir" in keys else serving if "infer_backend" in keys else None
    if of_command and "dataset" not in keys:
        found = Findings()
        of_command.translate(keys, found)
        if found.problems:
            raise GymError(found.problems)
    else:
        load_recipe(path)


def main() -> None:
    """Print both counts, and the reasons by how many files they are in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--files", action="store_true", help="say of each file why it is refused")
    given = parser.parse_args()
    checkout = given.checkout.resolve()
    os.chdir(checkout)  # its files name others from there
    counts: Counter[tuple[str, bool]] = Counter()
    reasons: Counter[tuple[str, str]] = Counter()
    for dialect, path, keys in files(checkout):
        problems = refused(path, keys)
        counts[dialect, not problems] += 1
        reasons.update({(dialect, f"{problem.key}: {problem.why}"[:110]) for problem in problems})
        if given.files:
            print(
                f"{path.relative_to(checkout)}: {'; '.join(f'{each.key}: {each.why}' for each in problems) or 'accepted'}"
            )
    for dialect in ("v0", "v1"):
        print(f"{dialect}: accepted {counts[dialect, True]} of {counts[dialect, True] + counts[dialect, False]}")
        for (of, reason), count in reasons.most_common():
            if of == dialect:
                print(f"  {count:3} {reason}")


if __name__ == "__main__":
    main()
