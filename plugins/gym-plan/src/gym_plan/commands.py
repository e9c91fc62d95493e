"""`gym plan`: what a run needs, before it is started."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gym_core import load_recipe


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(recipe: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print memory, disk, work and time of a run before it is started; no weights are needed.

    The data are tokenized as for the run where that is possible, and the tokens kept for it.

    Example: `gym plan recipe.yaml train.batch_tokens=auto`
    """
    loaded = load_recipe(recipe, overrides)
    loaded.algorithm.check_recipe(loaded)
    from gym_torch.lean_imports import import_models

    import_models()
    from gym_plan.plan import plan as make

    made = make(loaded)
    if as_json:
        click.echo(json.dumps(made.to_json(), indent=2))
        return
    from gym_plan.show import show

    show(made)
