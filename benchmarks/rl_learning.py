"""Whether algorithms learn: accuracy of greedy answers to held-out arithmetic tasks, before and after each of `recipes/rl`.

No task that is asked here shares its content with a prompt of training. Each recipe runs with three seeds; `--quick`
takes one. Seconds are those of a whole run, answers and evaluations included.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from learning import learnt
from report import Report, main
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core import Outcome
from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_tiny.tasks import generate
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.generation.generator import complete

RECIPES = Path(__file__).parents[1] / "recipes" / "rl"
HELD_OUT = 200  #: tasks
BEFORE, AFTER, MINUTES = 0.40, 0.85, 10


def accuracy(model: PreTrainedModel) -> float:
    """Return the share of held-out tasks that a model answers rightly."""
    tasks = list(generate("arithmetic", HELD_OUT, seed=1, split="heldout"))
    rows = [task.row() | {"messages": list(task.messages)} for task in tasks]
    answers = complete(model.eval(), Tokenizer(locate("tiny")), rows, max_new_tokens=24)
    return fmean(task.check(answer) for task, answer in zip(tasks, answers, strict=True))


def judged(recipe: Path, outcome: Outcome) -> float:
    """Return the accuracy of the model that a run left."""
    return accuracy(open_artifact(outcome.artifact).merged())


def measure(report: Report, quick: bool) -> None:
    """Fill the report."""
    before = accuracy(AutoModelForCausalLM.from_pretrained(locate("tiny")))
    report.figures["before"] = before
    report.check("held-out accuracy before training", before, at_most=BEFORE)
    for name, found in learnt(sorted(RECIPES.glob("*.yaml")), judged, quick):
        report.figures[name] = found
        report.check(f"{name}: held-out accuracy, worst seed", min(run["accuracy"] for run in found), at_least=AFTER)
        report.check(f"{name}: minutes, slowest seed", max(run["seconds"] for run in found) / 60, at_most=MINUTES)


if __name__ == "__main__":
    main(measure, __doc__ or "")
