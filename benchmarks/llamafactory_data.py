"""Counts the demo files of LLaMA-Factory that preview and train three steps, and those that are refused for their media.

    python benchmarks/llamafactory_data.py CHECKOUT [FOLDER...] [--json] [--quick]

Each file of `CHECKOUT/data`, and of further folders with a `dataset_info.json`, is read as its entry there says, or as rows of
the second version. Rows with images, video or audio must be refused: trained as plain text, they would teach something else.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gym_core import GymError, execute, load_recipe
from gym_testkit import tiny

STEPS, ROWS = 3, 24
MEDIA = ("images", "videos", "audios")


def stage_of(entry: dict[str, Any]) -> str:
    """Return what rows of an entry of `dataset_info.json` are for."""
    columns = entry.get("columns", {})
    if entry.get("ranking"):
        return "dpo"
    return "kto" if "kto_tag" in columns else "pt" if set(columns) == {"prompt"} else "sft"


def files(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the demo files of a folder, each with the keys of a file that learns from it."""
    told = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
    for name, entry in told.items():
        file = entry.get("file_name")
        if file and (folder / file).is_file():
            dataset = {"dataset": name, "dataset_dir": str(folder), "template": "qwen"}
            yield file, {"stage": stage_of(entry), "max_samples": ROWS, **dataset}
    for path in sorted(folder.glob("v1_*.jsonl")):
        yield path.name, {"train_dataset": str(path)}


def has_media(folder: Path, file: str) -> bool:
    """Whether a row of a file names images, video or audio."""
    text = (folder / file).read_text(encoding="utf-8")
    if file.endswith(".txt"):
        return False
    lines = [line for line in text.split("\n") if line.strip()]
    rows = [json.loads(line) for line in lines] if file.endswith(".jsonl") else json.loads(text)
    parts = [part for row in rows for message in row.get("messages") or () for part in _parts(message)]
    return any(row.get(name) for row in rows for name in MEDIA) or any("url" in part.get("type", "") for part in parts)


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def outcome(keys: dict[str, Any], model: Path, output: Path) -> str:
    """Preview and train; return what came of it: `trained`, or why not."""
    second = "train_dataset" in keys
    made = {
        **keys,
        "output_dir": str(output),
        "max_steps": STEPS,
        "cutoff_len": 512,
        "learning_rate": 1e-3,
        "bf16": False,
    }
    made |= {"model": str(model)} if second else {"model_name_or_path": str(model), "finetuning_type": "full"}
    if second and "dpo" in str(keys["train_dataset"]):
        made["algorithm"] = "dpo"
    try:
        recipe = load_recipe(made)
        shown = recipe.data.preview(recipe, 1)  # type: ignore[union-attr]
        learnt = sum(example["trained_tokens"] for example in shown["examples"])
        done = execute(recipe).output
    except GymError as error:
        return "; ".join(f"{problem.key}: {problem.why}" for problem in error.problems)
    losses = [json.loads(line).get("loss", 0.0) for line in (done / "metrics.jsonl").read_text().splitlines()]
    steps = json.loads((done / "run.json").read_text())["training"]["steps"]
    return "trained" if learnt and steps == STEPS and all(map(math.isfinite, losses)) else "it did not train"


def main() -> None:
    """Print the outcome of each file and the counts; exit with 1 where one is not what it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--quick", action="store_true", help="leave out what a folder before had under the same name")
    given = parser.parse_args()
    folders = [(given.checkout / "data").resolve(), *(folder.resolve() for folder in given.folders)]
    os.chdir(given.checkout)  # its files name others from there
    told: dict[str, tuple[bool, str]] = {}
    with tempfile.TemporaryDirectory() as outputs:
        model = tiny.write_model(Path(outputs) / "model")
        for number, folder in enumerate(folders):
            for file, keys in files(folder):
                if given.quick and any(known.endswith(f"/{file}") for known in told):
                    continue
                name = f"{number}/{file}"
                told[name] = has_media(folder, file), outcome(keys, model, Path(outputs) / "runs" / name)
                print(f"{folder.name}/{file}: {told[name][1]}", file=sys.stderr, flush=True)
    text = [what for media, what in told.values() if not media]
    media = [what for media, what in told.values() if media]
    trained, refused = (
        text.count("trained"),
        sum("can be learnt from" in what or "are not read" in what for what in media),
    )
    checks = [
        {
            "name": "text files that preview and train",
            "value": trained,
            "target": len(text),
            "holds": trained == len(text),
        },
        {
            "name": "files with media that are refused",
            "value": refused,
            "target": len(media),
            "holds": refused == len(media),
        },
    ]
    figures = {name: what for name, (_, what) in told.items()}
    if given.json:
        print(json.dumps({"machine": platform.platform(), "figures": figures, "checks": checks}, indent=1))
    else:
        for check in checks:
            print(f"{check['name']}: {check['value']} of {check['target']}")
    sys.exit(not all(check["holds"] for check in checks))


if __name__ == "__main__":
    main()
