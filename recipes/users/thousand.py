"""A model for each of a thousand users: writes their files, trains them together, verifies the store, and asks every one of them.

python recipes/users/thousand.py runs/people --count 1000

The same command again goes on where it stopped. `--json` prints the figures alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import people

from gym_core.yamlfile import read_yaml
from gym_data.location import locate
from gym_personalization.trainer import PersonalizedTrainer

RECIPE = Path(__file__).parent / "recipe.yaml"


def gym(*words: str | Path) -> tuple[dict[str, Any], float]:
    """Run a command; return the JSON object that it prints, and its seconds. Its progress is shown."""
    began = time.monotonic()
    command = [str(Path(sys.executable).parent / "gym"), *map(str, words), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        sys.exit(done.returncode)
    return json.loads(done.stdout), time.monotonic() - began


def size(files: list[Path]) -> int:
    """Return the bytes of files; what has several names counts once."""
    found = [file.stat() for file in files]
    return sum({(each.st_dev, each.st_ino): each.st_size for each in found}.values())


def answered(output: Path, count: int) -> dict[str, Any]:
    """Ask every user everything that it taught its variant, all users in the same batches."""
    asked = [(user, ask, kind) for user in range(count) for ask in people.ASKED for kind in people.LIKES]
    began = time.monotonic()
    with PersonalizedTrainer(read_yaml(RECIPE).data["model"], output=output) as trainer:
        found = trainer.serve_variants(
            [(people.name(user), ask.format(kind)) for user, ask, kind in asked], max_new_tokens=8
        )
    right = sum(answer == people.likes(user)[kind] for (user, _, kind), answer in zip(asked, found, strict=True))
    return {"questions": len(asked), "right": right, "seconds": round(time.monotonic() - began, 1)}


@click.command()
@click.argument("output", type=click.Path(path_type=Path, file_okay=False))
@click.option("--count", default=1000, show_default=True, type=click.IntRange(min=1), help="Users.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(output: Path, count: int, as_json: bool) -> None:
    """Create, verify and ask the variants of COUNT users in the folder OUTPUT."""
    folder = output.with_name(f"{output.name}-data")
    people.write(folder, count)
    made, creating = gym("personalize", RECIPE, "--users", folder, f"output={output}")
    told, verifying = gym("variants", "verify", "--store", output)
    deltas = [each["bytes"] for each in made["variants"].values()]
    runs, stored = output / "users", output / "files"
    figures = {
        "users": len(made["variants"]),
        "failed": made["failed"],
        "seconds_to_create": round(creating, 1),
        "bytes_per_user": {
            "rows": round(size(list(folder.glob("*.jsonl"))) / count),
            "delta": round(sum(deltas) / max(1, len(deltas))),
            "variant": round(told["bytes"] / max(1, told["sound"])),
            "adapter": round(size(list(runs.glob("*/*/model/*.safetensors"))) / count),
            "run": round(size([file for file in runs.rglob("*") if file.is_file()]) / count),
        },
        "bytes": {
            "store": size([output / "index.sqlite", *(file for file in stored.rglob("*") if file.is_file())]),
            "base": size(list(locate("tiny").glob("*.safetensors"))),
        },
        "sound": told["sound"],
        "seconds_to_verify": round(verifying, 1),
        "answers": answered(output, count),
    }
    click.echo(json.dumps(figures) if as_json else json.dumps(figures, indent=2))
    if made["failed"] or told["sound"] != count:
        sys.exit(1)


if __name__ == "__main__":
    main()
