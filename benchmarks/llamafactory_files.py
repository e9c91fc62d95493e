"""Counts the example files of a LLaMA-Factory checkout that are accepted, and those that are refused by reason.

    python benchmarks/llamafactory_files.py CHECKOUT [--files] [--train]

With `--train` every accepted file for training trains three steps on its own datasets, with a small model in place of its own.
Left out are launcher configurations and lists of tokens: YAML without `model_name_or_path` and without the keys of a v1 file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoConfig, AutoModelForCausalLM

from gym_core import GymError, execute, load_recipe
from gym_core.errors import Problem
from gym_core.sections import Findings
from gym_data.kinds import Data
from gym_llamafactory import exporting, predicting, serving
from gym_llamafactory.v1 import exporting as merging
from gym_testkit import tiny
from gym_testkit.vision_models import small_model
from gym_torch.kinds import part

TOKENS = ("bos_token", "<|eot_id|>", "<|eom_id|>")  #: those of the files' templates that the model needs
LAYERS = 16
STEPS, ROWS, CUTOFF = 3, 32, 512  #: of a training, of each dataset of it, and of a sample


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


def command(keys: dict[str, Any]) -> Any:
    """Return what reads a file that is not for training, None where it is."""
    if "peft_config" in keys and "train_dataset" not in keys:
        return merging
    marks = {
        "do_train": None,
        "do_predict": predicting,
        "dataset": None,
        "export_dir": exporting,
        "infer_backend": serving,
    }
    return next((reader for mark, reader in marks.items() if keys.get(mark)), None)


def for_training(keys: dict[str, Any]) -> bool:
    """Whether a file is for `gym train`."""
    return command(keys) is None


def refused(path: Path, keys: dict[str, Any]) -> list[Problem]:
    """Return why a file is refused by the command that it is for; nothing where it is accepted."""
    try:
        check(path, keys)
    except GymError as error:
        return list(error.problems)
    return []


def check(path: Path, keys: dict[str, Any]) -> None:
    """Read a file as its command does. Raises GymError where it is refused."""
    of_command = command(keys)
    if of_command:
        found = Findings()
        of_command.translate(keys, found)
        if found.problems:
            raise GymError(found.problems)
    else:
        load_recipe(path)


#: What a refusal is about, by a word of the key or of the reason; the first that fits counts.
SUBJECTS = {
    "image_url": "images in rows of the second version",
    "can be learnt": "images of a template that is not known here",
    "not installed": "a tracker that is not installed",
    "use_kt": "KTransformers",
    "fp8": "fp8",
    "parallel_size": "layers or samples cut up over processes",
    "cp_size": "layers or samples cut up over processes",
    "dist_config": "experts cut up over processes",
    "kernel": "kernels of other packages",
    "mixture_of_depths": "the package of Mixture of Depths",
    "no dataset": "a dataset that its repository does not hold",
    "Hub": "a dataset on the Hub",
}


def subject(problems: list[Problem]) -> str:
    """Return what a refusal is about."""
    told = " ".join(f"{problem.key}: {problem.why}" for problem in problems)
    return next((name for word, name in SUBJECTS.items() if word in told), told)


def deep(model: Path) -> Path:
    """Give a model as many layers as the files train."""
    config = AutoConfig.from_pretrained(model)
    config.num_hidden_layers, config.layer_types = LAYERS, None
    AutoModelForCausalLM.from_config(type(config)(**config.to_dict())).save_pretrained(model)
    return model


def train(keys: dict[str, Any], model: Path, seeing: Path, output: Path) -> str:
    """Train three steps of a file with a small model in place of its own, `seeing` where its data has images.

    Return why that failed, or nothing.
    """
    made = {**keys, "output_dir": str(output), "max_steps": STEPS, "cutoff_len": CUTOFF}
    key = "model_name_or_path" if "model_name_or_path" in keys else "model"
    made |= {"max_samples": ROWS} if key == "model_name_or_path" else {}
    try:
        recipe = load_recipe(made | {key: str(model)})
        images = part(recipe, Data)
        done = execute(load_recipe(made | {key: str(seeing)}) if images and images.brings_inputs() else recipe).output
        lines = [json.loads(line) for line in (done / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        record = json.loads((done / "run.json").read_text(encoding="utf-8"))
    except GymError as error:
        return "; ".join(f"{problem.key}: {problem.why}" for problem in error.problems)
    finite = all(math.isfinite(line["loss"]) for line in lines)
    return "" if finite and record["training"]["steps"] == STEPS else "it did not train"


def said(found: Counter[tuple[str, str]], dialect: str) -> str:
    """Return reasons with how many files they are of."""
    return ", ".join(f"{name} ({count})" for (of, name), count in found.most_common() if of == dialect)


def main() -> None:
    """Print the counts as a table, and the reasons by how many files they are in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--files", action="store_true", help="say of each file why it is refused")
    parser.add_argument("--train", action="store_true", help=f"train {STEPS} steps of each that is for training")
    given = parser.parse_args()
    checkout = given.checkout.resolve()
    os.chdir(checkout)  # its files name others from there
    counts: Counter[tuple[str, str]] = Counter()
    reasons: Counter[tuple[str, str]] = Counter()
    failures: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as outputs:
        model = deep(tiny.write_model(Path(outputs) / "model", extra=TOKENS))
        seeing = small_model("qwen2_5_vl", Path(outputs) / "seeing")
        for number, (dialect, path, keys) in enumerate(files(checkout)):
            problems, failed = refused(path, keys), ""
            counts[dialect, "refused" if problems else "accepted"] += 1
            reasons.update([(dialect, subject(problems))] if problems else [])
            if not problems and for_training(keys):
                counts[dialect, "for training"] += 1
                failed = train(keys, model, seeing, Path(outputs) / str(number)) if given.train else ""
                counts[dialect, "trained"] += given.train and not failed
                failures.update([(dialect, subject([Problem(failed, "", "")]))] if failed else [])
            if given.files:
                why = "; ".join(f"{each.key}: {each.why}" for each in problems)
                outcome = why or (f"accepted, not trained: {failed}" if failed else "accepted")
                print(f"{path.relative_to(checkout)}: {outcome}", flush=True)
    print("| Files | Accepted | Trained here | Refused because of | Not trained because of |\n|---|---|---|---|---|")
    for dialect in ("v0", "v1"):
        accepted, whole = counts[dialect, "accepted"], counts[dialect, "accepted"] + counts[dialect, "refused"]
        trained = f"{counts[dialect, 'trained']} of {counts[dialect, 'for training']}"
        print(
            f"| {dialect} | {accepted} of {whole} | {trained} | {said(reasons, dialect)} | {said(failures, dialect)} |"
        )


if __name__ == "__main__":
    main()
