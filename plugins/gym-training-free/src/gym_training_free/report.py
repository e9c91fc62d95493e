"""The HTML report of a run: every round, what was proposed, what was taken up and what was rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from gym_training_free.endpoint.ledger import dollars
from gym_training_free.experience.library import ExperienceLibrary
from gym_training_free.learning.learner import Round

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .25em .6em; border-bottom: 1px solid #ddd }
.no { color: #a33 } .yes { color: #272 } .quiet { color: #777 } del { color: #a33 }
"""


def report(library: ExperienceLibrary, rounds: Sequence[Round]) -> str:
    """Return a page; whatever models wrote is shown as text."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8"><title>Training-Free GRPO</title>',
        f"<style>{_STYLE}</style>",
        "<h1>Training-Free GRPO</h1>",
        f"<p>{_summary(library)}</p>",
        "<h2>Experiences</h2>",
        _table(
            ("id", "experience", "added", "uses", "gain"),
            [(one.id, one.text, one.origin, one.uses, _number(one.uplift)) for one in library],
        ),
        *(_round(made) for made in rounds),
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _summary(library: ExperienceLibrary) -> str:
    evidence = library.evidence
    held = evidence.get("held_out")
    measured = (
        f"On {held['questions']} questions held out the mean reward went from {held['old']:.3f} to {held['new']:.3f} "
        f"({held['better']} answers better, {held['worse']} worse)."
        if held
        else "It was not evaluated: no question with a reward was held out."
    )
    told = [measured]
    if "confirmed" in evidence:
        confirmed, lost = evidence["confirmed"], evidence["unconfirmed"]
        unpriced = evidence.get("unpriced", ())
        told.append(f"{confirmed['calls']:,} calls: {dollars(confirmed['cost'], unpriced)}.")
        if lost["calls"]:
            told.append(f"{lost['calls']:,} more brought no count: {dollars(lost['cost'], unpriced)}, at most.")
    for model, names in evidence.get("left_out", {}).items():
        if names:
            told.append(f"{model} refuses {' and '.join(names)}: it was asked without.")
    if evidence.get("stopped"):
        told.append(f"Stopped early: {evidence['stopped']}.")
    return escape(" ".join(told))


def _round(made: Round) -> str:
    shade = {None: "quiet", True: "yes", False: "no"}[made.accepted]
    head = f"Round {made.step}, epoch {made.epoch + 1}: <span class={shade}>{made.verdict}</span>"
    said = (
        f"{made.questions} questions, {made.answers} answers, mean reward {_number(made.reward)}, "
        f"{made.teaching} groups that differ; {made.experiences} experiences; so far: {dollars(made.cost, made.unpriced)}."
    )
    if made.comparison:
        c = made.comparison
        said += f" Held out: {c.old:.3f} before, {c.new:.3f} with it; {c.better} better, {c.worse} worse, p(harm) {c.p_harm:.3f}."
    rows = [
        (
            change.operation,
            change.id or "",
            f"{change.before} -> {change.after}" if change.before and change.after else change.after or change.before,
            "" if change.applied else "no",
            change.why,
        )
        for change in made.changes
    ]
    table = _table(("operation", "id", "text", "done", "why"), rows) if rows else ""
    return f"<h2>{head}</h2><p>{escape(said)}</p>{table}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return '<p class="quiet">none</p>'
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.3f}" if value < 0 else f"{value:.3f}"
