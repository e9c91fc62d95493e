"""Completions as people read them in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from gym_data.preview import safe
from gym_rl.rollout_log.files import Sample
from gym_rl.rollout_log.ranking import Ranking

GOOD, BAD = "green", "red"


def show(found: Ranking) -> None:
    """Print a ranking."""
    console = Console(highlight=False)
    console.print(Text(_summary(found), style="bold"), soft_wrap=True)
    for title, colour, samples in (("best", GOOD, found.best), ("worst", BAD, found.worst)):
        _list(console, title, colour, samples)


def _list(console: Console, title: str, colour: str, samples: Sequence[Sample]) -> None:
    for number, sample in enumerate(samples, start=1):
        body = Text.assemble((safe(sample.prompt.rstrip()), "dim"), "\n", safe(sample.answer))
        if not sample.finished:
            body.append(" [cut off]", style="yellow")
        head = Text(f"{title} {number}  {_judged(sample)}", style=colour)
        foot = Text(safe(f"{sample.id}, {sample.tokens} tokens"))
        console.print(
            Panel(body, title=head, title_align="left", subtitle=foot, subtitle_align="left", border_style=colour)
        )


def _summary(found: Ranking) -> str:
    first, last = found.steps
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    parts = [f"{steps}: {found.answers} completions of {found.prompts} prompts"]
    parts.append("none scored" if found.reward is None else f"mean reward {found.reward:.4g}")
    parts += [f"{found.answers - found.judged} not scored"] * (0 < found.judged < found.answers)
    parts += [f"{found.truncated} cut off"] * (found.truncated > 0)
    return ", ".join(parts)


def _judged(sample: Sample) -> str:
    each = [f"{name} {'-' if score is None else f'{score:.4g}'}" for name, score in sample.rewards.items()]
    parts = [f"reward {sample.reward:.4g}", *(each if len(each) > 1 else [])]
    return "  ".join([*parts, *([] if sample.advantage is None else [f"advantage {sample.advantage:+.4g}"])])
