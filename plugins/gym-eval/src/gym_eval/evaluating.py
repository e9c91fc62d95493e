"""Evaluates a model, compares it with another, and writes what was found beside the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gym_core import DataError
from gym_core.files import expanded, write_atomically
from gym_core.record import environment, plain
from gym_eval.comparison import Change, Verdict, compared
from gym_eval.language_model import opened
from gym_eval.options import EvalOptions
from gym_eval.scores import Evaluation, Results, Score
from gym_manage.recorded import found_in, is_run
from gym_serve.contract import ModelSource
from gym_serve.inference.made_by import hash_of

FOLDER = "eval"


@dataclass(frozen=True)
class Evaluated:
    """What was found, and where it was written."""

    model: str
    other: str | None
    scores: Sequence[Score]
    changes: Sequence[Change]
    max_drop: float | None
    files: Sequence[Path] = ()

    def verdict(self, change: Change) -> Verdict:
        """Return whether a score dropped by more than it may."""
        return "" if self.max_drop is None else change.verdict(self.max_drop)

    @property
    def passed(self) -> bool:
        """Whether every score that has a better way is shown to have dropped by no more than it may, and there is one."""
        verdicts = {self.verdict(change) for change in self.changes} - {""}
        return self.max_drop is None or verdicts == {"ok"}

    def changes_told(self) -> list[dict[str, Any]]:
        """Return the changes as plain data."""
        return [
            {
                "task": each.score.task,
                "metric": each.score.metric,
                "before": each.before,
                "after": each.before + each.change,
                "change": each.change,
                "interval": [each.low, each.high],
                "method": each.method,
                "questions": each.questions,
                "better": each.better,
                "worse": each.worse,
                "verdict": self.verdict(each) or None,
            }
            for each in self.changes
        ]


def evaluated(options: EvalOptions) -> Evaluated:
    """Evaluate as options say, and write what a model answered before another one is asked.

    Raises what the evaluator and opening a model raise.
    """
    evaluation: Evaluation = options.evaluator.build()
    folder, date = _folder(options), datetime.now().isoformat().replace(":", "-")  # as lm-eval names its files
    name, results, about = _asked(evaluation, options, options.source(), options.tenant)
    files = _kept(results, about, folder, name, date)
    if options.compare is None:
        return Evaluated(name, None, results.scores, (), options.max_drop, files)
    other, before, about_other = _asked(evaluation, options, options.other(), None)
    other = f"before-{other}" if other == name else other
    first = _kept(before, about_other, folder, other, date)
    found = Evaluated(name, other, results.scores, compared(results.scores, before.scores), options.max_drop)
    if folder is None:
        return found
    about |= {"compared_with": other, "max_drop": options.max_drop, "changes": found.changes_told()}
    return replace(found, files=[*first, *_write(results, about, folder / name, date)])


def _kept(results: Results, about: dict[str, Any], folder: Path | None, name: str, date: str) -> list[Path]:
    """Write what was found where there is a folder for it. Raises DataError then, where a task could not score an answer."""
    files = _write(results, about, folder / name, date) if folder else []
    if not results.failed:
        return files
    (task, why), *others = results.failed.items()
    more = f", as {len(others)} more tasks cannot" if others else ""
    kept = (
        f"answers, and scores of other tasks, are in {folder / name}" if folder else "`output=FOLDER` keeps the answers"
    )
    raise DataError(f"cannot score an answer{more}: {why}", where=task, key="tasks", fix=f"mend the task; {kept}")


def _asked(
    evaluation: Evaluation, options: EvalOptions, source: ModelSource, tenant: str | None
) -> tuple[str, Results, dict[str, Any]]:
    """Return the name of a model, what it answered, and what is written about that beside it."""
    with opened(source, tenant, options.dtype, options.batch_tokens) as model:
        results = evaluation.run(model)
        artifact = model.artifact
        whole = {"path": str(artifact.path.absolute()), "kind": artifact.kind, "base": artifact.base}
        about = {
            "options": options.model_dump(mode="json"),
            "model": whole | {"tenant": tenant, "fingerprint": hash_of(artifact.path)},
            "environment": environment(),
        }
        return model.name, results, about


def _folder(options: EvalOptions) -> Path | None:
    """Return where results are written; None where nobody says."""
    if options.output is not None:
        return expanded(str(options.output))
    place = expanded(options.model)
    if not is_run(place) and not is_run(place.parent):
        return None
    found = found_in(place)
    return found.place(FOLDER) if found.recipe else None


def _write(results: Results, about: dict[str, Any], folder: Path, date: str) -> list[Path]:
    """Write what was found as lm-eval does: a file of scores, and one of questions and answers for each task."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for task, rows in results.samples.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        files.append(folder / f"samples_{task.replace('/', '__')}_{date}.jsonl")
        write_atomically(files[-1], lines)
    files.append(folder / f"results_{date}.json")
    write_atomically(
        files[-1], json.dumps(plain({**results.report, "gym": about}), indent=2, ensure_ascii=False) + "\n"
    )
    return files
