"""Counts the example files of an axolotl checkout that are accepted, and those that are refused by reason.

    python benchmarks/axolotl_files.py CHECKOUT [--files] [--json]

A file is accepted where it becomes a recipe: its keys, values and components are checked; its model and its rows, which lie on
the Hub, are not fetched. Left out is YAML without `base_model`. Files of models that read images or sound have a
`processor_type`, and are counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from gym_core import GymError, load_recipe
from gym_core.errors import Problem

#: What a refusal is about, by a word of the key or of the reason; the first that fits counts.
SUBJECTS = {
    "only axolotl": "EBFT, an algorithm that only axolotl has",
    "qat": "quantization-aware training",
    "diffusion": "diffusion of text",
    "onebitllms": "weights of 1.58 bits",
    "nvfp4": "weights in NVFP4 under an adapter",
    "LLMCompressor": "sparse weights",
    "quadratic": "another shape of warm-up",
    "tokenizer_config": "the tokenizer of another model",
    "tokens already": "rows that are tokens already",
    "do_causal_lm_eval": "answers scored in training",
    "max_packed_sequence_len": "an old key",
    "output_router_logits": "the load-balancing loss of experts, without its coefficient",
    "unfrozen_parameters": "weights that train, by patterns",
    "lora_target_modules": "layers to adapt, by a pattern",
    "data_files": "single files of a dataset of the Hub",
    "drop_system_message": "system messages that are left out",
    "code of yours": "rows made by a function of the user",
    "relora": "ReLoRA",
    "deduplication": "equal rows that are left out",
    "unknown key": "a key that axolotl does not know either",
}


def files(checkout: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return the path and keys of each example."""
    found = []
    for path in sorted((checkout / "examples").rglob("*.y*ml")):
        keys = yaml.safe_load(path.read_text(encoding="utf-8"))
        if isinstance(keys, dict) and "base_model" in keys:
            found.append((path, keys))
    return found


def refused(path: Path) -> list[Problem]:
    """Return why a file is refused; nothing where it is accepted."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            load_recipe(path)
    except GymError as error:
        return list(error.problems)
    return []


def subject(problems: list[Problem]) -> str:
    """Return what a refusal is about."""
    told = [f"{problem.key}: {problem.why}" for problem in problems]
    found = [name for word, name in SUBJECTS.items() if any(word in each for each in told)]
    return found[0] if found else "; ".join(told)


def main() -> None:
    """Print the counts as a table, and the reasons by how many files they are in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--files", action="store_true", help="say of each file why it is refused")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    given = parser.parse_args()
    checkout = given.checkout.resolve()
    os.chdir(checkout)  # its files name others from there
    counts: Counter[tuple[str, bool]] = Counter()
    reasons: dict[str, Counter[str]] = {"text": Counter(), "images or sound": Counter()}
    for path, keys in files(checkout):
        problems, what = refused(path), "images or sound" if keys.get("processor_type") else "text"
        counts[what, not problems] += 1
        reasons[what].update([subject(problems)] if problems else [])
        if given.files:
            why = "; ".join(f"{each.key}: {each.why}" for each in problems)
            print(f"{path.relative_to(checkout)}: {why or 'accepted'}", flush=True)
    table = {
        what: {
            "accepted": counts[what, True],
            "files": counts[what, True] + counts[what, False],
            "refused because of": dict(found.most_common()),
        }
        for what, found in reasons.items()
    }
    if given.json:
        print(json.dumps(table, indent=2))
        return
    print("| Models of | Accepted | Refused because of |\n|---|---|---|")
    for what, found in table.items():
        why = ", ".join(f"{name} ({count})" for name, count in found["refused because of"].items())
        print(f"| {what} | {found['accepted']} of {found['files']} | {why} |")


if __name__ == "__main__":
    main()
