"""`gym tune`: the command. Nothing heavy is imported for its help."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gym_core.errors import FAILED
from gym_manage.options_command import OptionsCommand
from gym_tune.study import Study, read_study


@click.command(cls=OptionsCommand, options=Study)
@click.argument("study", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def tune(study: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Search hyperparameters of a recipe. The same command again continues a study; `n_trials=40` makes it longer.

    STUDY is a file with the keys below. KEY=VALUE overrides one of them, or else a key of the recipe. Every trial is a run of its
    own, `trials/0007` in the folder of the study. Exit code 1 where no trial came to a value.

    Example: `gym tune tune.yaml n_trials=40 train.max_steps=200`
    """
    file = read_study(study, overrides)
    from gym_tune.report import told  # Optuna takes its time
    from gym_tune.tuning import tuned

    outcome = tuned(file)
    click.echo(json.dumps(outcome, indent=2) if as_json else told(outcome))
    if outcome["best"] is None:
        click.get_current_context().exit(FAILED)
