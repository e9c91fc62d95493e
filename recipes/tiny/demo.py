"""Fine-tune the tiny model on its tasks, and show what it learned: accuracy, loss and answers, before and after.

Run as `python -m nox -s demo`, or `python recipes/tiny/demo.py [KEY=VALUE]...` where the packages are installed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from gym_core import execute, load_recipe
from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_tiny.tasks import KINDS, Task, generate
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.generation.generator import complete

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HERE = Path(__file__).parent
HELD_OUT = 30  #: tasks of each kind that no training row shares its content with
SHOWN = ("arithmetic", "sorting", "tools")


def answers(model: PreTrainedModel, tokenizer: Tokenizer, tasks: Sequence[Task]) -> list[str]:
    """Return the greedy answer to each task."""
    model.eval()
    return complete(
        model, tokenizer, [task.row() | {"messages": list(task.messages)} for task in tasks], max_new_tokens=64
    )


def accuracy(tasks: Sequence[Task], given: Sequence[str]) -> dict[str, float]:
    """Return the share of right answers by kind, and over all."""
    right: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    for task, answer in zip(tasks, given, strict=True):
        right[task.kind].append(task.check(answer))
    every = [hit for hits in right.values() for hit in hits]
    return {kind: sum(hits) / len(hits) for kind, hits in right.items()} | {"all": sum(every) / len(every)}


def main(overrides: Sequence[str]) -> int:
    """Train, compare and report; return 1 when accuracy did not rise by 50 points."""
    # After gym_torch, which drops what libraries log when they are imported.
    from transformers import AutoModelForCausalLM

    console = Console()
    output = Path("runs/demo")
    recipe = load_recipe(HERE / "sft.yaml", [f"output={output}", "train.overwrite=true", *overrides])
    tasks = [task for kind in KINDS for task in generate(kind, HELD_OUT, seed=1, split="heldout")]
    base_path = locate("tiny")
    tokenizer = Tokenizer(base_path)
    console.print(f"[bold]1.[/] asking the base model {len(tasks)} held-out tasks")
    before = answers(AutoModelForCausalLM.from_pretrained(base_path), tokenizer, tasks)
    console.print("[bold]2.[/] fine-tuning it with LoRA: recipes/tiny/sft.yaml")
    started = time.monotonic()
    outcome = execute(recipe)
    seconds = time.monotonic() - started
    console.print("[bold]3.[/] asking again\n")
    after = answers(open_artifact(outcome.artifact).merged(), tokenizer, tasks)
    first, last = accuracy(tasks, before), accuracy(tasks, after)
    show(console, tasks, before, after, first, last)
    gain = 100 * (last["all"] - first["all"])
    console.print(f"\nheld-out accuracy rose by [bold]{gain:.0f} points[/] in {seconds:.0f} s of training")
    console.print(f"the loss is drawn in {outcome.output / 'loss.png'}; everything else is in {outcome.output}")
    figures = {"before": first, "after": last, "gain_points": gain, "training_seconds": seconds}
    (outcome.output / "demo.json").write_text(json.dumps(figures, indent=2) + "\n")
    return int(gain < 50)


def show(
    console: Console,
    tasks: Sequence[Task],
    before: Sequence[str],
    after: Sequence[str],
    first: dict[str, float],
    last: dict[str, float],
) -> None:
    """Print accuracy by kind, and one answer of both models for a few kinds."""
    table = Table("held-out tasks", "base", "tuned", title="accuracy")
    for kind in (*KINDS, "all"):
        table.add_row(kind, f"{first[kind]:.0%}", f"{last[kind]:.0%}", style="bold" if kind == "all" else "")
    console.print(table)
    table = Table("asked", "base", "tuned", title="answers", show_lines=True)
    for kind in SHOWN:
        found = [number for number, task in enumerate(tasks) if task.kind == kind]
        number = next((n for n in found if tasks[n].check(after[n]) and not tasks[n].check(before[n])), found[0])
        table.add_row(tasks[number].messages[-1]["content"], before[number].strip(), after[number].strip())
    console.print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
