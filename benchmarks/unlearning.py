"""Five ways to forget five of twenty facts, and what brings them back: python benchmarks/unlearning.py [NAME]...

Runs the recipes of `recipes/unlearning` in the folder `runs`, and prints a table: the share of answers that greedy decoding
writes as they were, of those to forget and of those to keep, utility, forget quality against a model that never saw these.
Then the same after the model was quantized to 4 bits, and after three steps of fine-tuning on one of the forgotten facts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from gym_core import execute, load_recipe

HERE = Path("recipes/unlearning")
METHODS = ("gradient_ascent", "grad_diff", "npo", "simnpo", "rmu")
QUIET = {"plot": False, "log_every": 1000}


def trained(name: str, **changes: Any) -> Path:
    """Carry out a recipe of the folder, with sections in place of its own; return its output."""
    import yaml

    recipe = yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8")) | changes
    recipe["train"] = recipe["train"] | QUIET
    return execute(load_recipe(recipe)).output


def relearned(run: Path) -> Path:
    """Fine-tune what a run made on the first fact for three steps."""
    one = run / "one.jsonl"
    one.write_text((HERE / "forget.jsonl").read_text(encoding="utf-8").splitlines()[0] + "\n", encoding="utf-8")
    train = {"max_steps": 3, "batch_size": 1, "learning_rate": 1e-3, "precision": "fp32"}
    return trained("taught", model=str(run), data=[str(one)], train=train, output=f"{run}-relearned")


def gym(*arguments: str) -> str:
    """Run the command line; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "gym_core.cli", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def main(names: list[str]) -> None:
    """Print the table."""
    trained("taught")
    never = str(trained("never"))
    print("| Method | | Forgotten facts still known | Kept facts still known | Utility | Forget quality |")
    print("|---|---|---|---|---|---|")
    for number, name in enumerate(names or METHODS):
        run = trained(name)
        again, small = (
            str(relearned(run)),
            json.loads(gym("quantize", str(run), "--with", "rtn", "--json"))["quantized"],
        )
        told = json.loads(
            gym("unlearn", "report", str(run), "--retrained", never, "--beside", small, "--beside", again, "--json")
        )
        rows = {"": "before", "`never`": "retrained"} if not number else {}
        rows |= {f"`{name}`": "after", f"`{name}` ": small, f"`{name}`  ": again}
        for label, model in rows.items():
            each, beside = told["models"][model], {small: "in 4 bits", again: "relearned"}.get(model, "")
            known = " | ".join(f"{each[kind]['exact_match']:.0%}" for kind in ("forget", "retain"))
            print(
                f"| {label.strip() or 'none'} | {beside} | {known} | {each['utility']:.2f} | {each['forget_quality']:.2g} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
