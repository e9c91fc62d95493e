"""`gym data`: looking at what a recipe trains on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gym_core import DataError, Recipe, RecipeError, load_recipe, locate
from gym_data.config import DatasetConfig


@click.group()
def data() -> None:
    """Look at the data of a recipe."""


@data.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--count", default=3, show_default=True, type=click.IntRange(min=0), help="How many examples to print.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def preview(recipe: Path, overrides: tuple[str, ...], count: int, as_json: bool) -> None:
    """Print examples as the model will see them, trained tokens coloured, and what became of all rows.

    The tokens go into the cache that training reads.
    """
    loaded = load_recipe(recipe, overrides)
    if not isinstance(loaded.data, DatasetConfig):
        why = "this recipe has no data section" if loaded.data is None else "its data section is not of gym-data"
        raise RecipeError(why, where=str(recipe), key="data", fix="add, for example, `data: data.jsonl`")
    shown = _look(loaded.data, loaded, count)
    if as_json:
        click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    from gym_data.preview import show

    show(shown)


def _look(config: DatasetConfig, recipe: Recipe, count: int) -> dict[str, Any]:
    """Return examples and counts as plain data."""
    from gym_data.preview import tokenised

    shape, seed = recipe.algorithm.rows, recipe.train.seed
    model = recipe.canonical(everything=True).get("model", {})
    if "path" not in model:
        raise DataError("no model says how to tokenise", key="model.path", fix="add, for example, `model: tiny`")
    path = locate(model["path"], model.get("revision"), weights=False)
    return tokenised(config, path, shape, seed, count)
