"""`gym rollouts`: the completions of a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from gym_rl.rollout_log.files import HELD_OUT, TRAINING, RolloutLog


@click.group()
def rollouts() -> None:
    """Look at the completions of a run of reinforcement learning."""


@rollouts.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--step", type=click.IntRange(min=1), help="Step that was trained on them; the newest without it.")
@click.option("--held-out", is_flag=True, help="Completions of held-out prompts, of an evaluation.")
@click.option("--best", default=3, show_default=True, type=click.IntRange(min=0), help="How many of the best to print.")
@click.option("--worst", default=3, show_default=True, type=click.IntRange(min=0), help="How many of the worst.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(run: Path, step: int | None, held_out: bool, best: int, worst: int, as_json: bool) -> None:
    """Print the best and the worst completions of a step. RUN is an output directory; scores are beside them.

    Example: `gym rollouts show runs/grpo --step 20`
    """
    from gym_rl.rollout_log.ranking import rank

    found = rank(RolloutLog(run).read(HELD_OUT if held_out else TRAINING, step), best, worst)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2, ensure_ascii=False))
        return
    from gym_rl.rollout_log.show import show as print_ranking

    print_ranking(found)
