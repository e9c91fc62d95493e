"""`gym eval`: how well a model does on benchmarks, and whether it lost more than it may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
from pydantic.fields import FieldInfo

from gym_core.component import Config
from gym_core.errors import FAILED
from gym_eval.harness.config import LmEval
from gym_eval.options import EVALUATOR, EvalOptions, read
from gym_manage.options_command import OptionsCommand


class EvalCommand(OptionsCommand):
    """Lists the options of the usual evaluator beside those of the command."""

    omitted = frozenset({"model"})

    def _listed(self, options: type[Config], around: str = "") -> Iterator[tuple[str, str]]:
        own = [pair for pair in super()._listed(options, around) if not pair[0].startswith(EVALUATOR)]
        yield from super()._listed(LmEval)
        yield f"{EVALUATOR}=lm_eval", EvalOptions.model_fields[EVALUATOR].description or ""
        yield from own

    def typed(self, field: FieldInfo) -> str:
        """Return a default as it is typed."""
        return "" if field.default is False else super().typed(field)


@click.command(cls=EvalCommand, options=EvalOptions, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, required=True, metavar="MODEL [KEY=VALUE]...", type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(words: tuple[str, ...], as_json: bool) -> None:
    """Ask a MODEL the questions of benchmarks, those of lm-eval; with `compare`, say what it lost.

    MODEL is a run, a checkpoint, an artifact, a model, a family or a Hub id. Each KEY=VALUE may be written `--KEY VALUE` too, as
    lm-eval has it. Exit code 1 unless every score is shown to have dropped by no more than `max_drop`.

    Example: `gym eval runs/first --tasks arc_easy,hellaswag --num_fewshot 5 --compare Qwen/Qwen3-0.6B --max_drop 0.01`
    """
    options = read(words)
    from gym_torch.lean_imports import import_models  # torch takes its time

    import_models()
    from gym_eval.evaluating import evaluated
    from gym_eval.show import show

    found = evaluated(options)
    if as_json:
        click.echo(json.dumps(_told(found)))
    else:
        show(found)
    if not found.passed:
        click.get_current_context().exit(FAILED)


def _told(found: Any) -> dict[str, Any]:
    scores = [
        {
            "task": score.task,
            "metric": score.metric,
            "value": score.value,
            "stderr": score.stderr,
            "higher_is_better": score.higher_is_better,
        }
        for score in found.scores
    ]
    return {
        "scores": scores,
        "changes": found.changes_told(),
        "passed": found.passed,
        "files": [str(file) for file in found.files],
    }
