"""Prints scores and changes as tables."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from gym_eval.evaluating import Evaluated
from gym_eval.scores import Score

WAYS = {True: "higher", False: "lower", None: ""}
WIDE = 160  #: columns where nobody says how many there are
FAILS = {
    "dropped": "dropped by more than",
    "undecided": "these questions are too few to rule out a drop of more than",
}
SHOWN = {"dropped": "dropped", "undecided": "not decided", "ok": "ok", "": ""}


def show(found: Evaluated) -> None:
    """Print what was found."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    console.print(_scores(found))
    if found.other is not None:
        console.print()
        console.print(_changes(found))
        console.print(
            f"change of {found.model} against {found.other}, in brackets the interval of 95 % (paired)",
            markup=False,
            soft_wrap=True,
        )
        for each in found.changes:
            if said := FAILS.get(found.verdict(each)):
                console.print(
                    f"{each.score.task}, {each.score.metric}: {said} {found.max_drop:g}",
                    markup=False,
                    soft_wrap=True,
                )
        if not found.passed and not any(map(found.verdict, found.changes)):
            console.print("max_drop: there is no score of which it can be told")
        if not found.changes:
            console.print("no score can be compared: no task says what each question contributes")
    if found.files:
        console.print(f"wrote {found.files[-1]}", markup=False, soft_wrap=True)


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    return table


def _scores(found: Evaluated) -> Table:
    names = ("task", "left"), ("n-shot", "right"), ("metric", "left"), ("better", "left")
    table = _table(*names, ("value", "right"), ("stderr", "right"), ("questions", "right"))
    before = ""
    for score in found.scores:
        task = "" if score.task == before else score.task
        before = score.task
        shots = "" if score.shots is None else str(score.shots)
        stderr = "" if score.stderr is None else f"± {score.stderr:.4f}"
        asked = f"{len(score.questions):,}" if score.questions else ""
        value = f"{score.value:.4f}"
        table.add_row(task, shots if task else "", score.metric, WAYS[score.higher_is_better], value, stderr, asked)
    return table


def _changes(found: Evaluated) -> Table:
    columns = [("task", "left"), ("metric", "left"), ("before", "right"), ("after", "right"), ("change", "right")]
    columns += [("", "left"), ("better", "right"), ("worse", "right"), ("method", "left")]
    gated = found.max_drop is not None
    table = _table(*columns, *([("", "left")] if gated else []))
    for each in found.changes:
        between = f"[{each.low:+.4f}, {each.high:+.4f}]"
        row = [each.score.task, each.score.metric, f"{each.before:.4f}", f"{each.before + each.change:.4f}"]
        row += [
            f"{each.change:+.4f}",
            between.replace("[", r"\["),
            *_counts(each.score, each.better, each.worse),
            each.method,
        ]
        verdict = found.verdict(each)
        table.add_row(*row, *([SHOWN[verdict]] if gated else []), style="bold" if verdict == "dropped" else None)
    return table


def _counts(score: Score, better: int, worse: int) -> tuple[str, str]:
    return ("", "") if score.total is not None else (f"{better:,}", f"{worse:,}")
