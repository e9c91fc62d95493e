"""`gym explain`: what a recipe means, whose components it uses, and what plugins remark on it (group `gym.remarks`)."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gym_core import Recipe, errors, load_recipe
from gym_core.discovery import entries
from gym_core.loading import load
from gym_core.sections import dotted
from gym_manage.yaml_text import dump_yaml


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--all", "everything", is_flag=True, help="Also print the values nobody set.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain(recipe: Path, overrides: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Print the canonical recipe, every resolved component with its distribution and version, and the code that will run.

    Example: `gym explain recipe.yaml adapter=lora --all`
    """
    loaded = load_recipe(recipe, overrides)
    canonical = loaded.canonical(everything)
    if as_json:
        components = [item._asdict() | {"path": list(item.path)} for item in loaded.resolved]
        click.echo(json.dumps({"recipe": canonical, "components": components, "hooks": list(loaded.hooks)}, indent=2))
        return
    click.echo(dump_yaml(canonical).rstrip() + "\n")
    _print_components(loaded)
    for entry in (entry for entry in entries("remarks") if entry.name in canonical):  # named after a section
        try:
            lines = [str(line) for line in load(entry)(loaded)]
        except Exception as error:  # of a package that the recipe need not use
            lines = [f"{entry.name}  {entry.dist} has a remark that fails: {type(error).__name__}: {error}"]
        click.echo("".join(f"# {errors.printable(line)}\n" for line in lines), nl=False)


def _print_components(recipe: Recipe) -> None:
    rows = [
        (dotted(r.path), r.name, f"{r.dist} {r.version}", errors.printable(r.target or r.config, 300))
        for r in recipe.resolved
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        click.echo("# " + "  ".join(text.ljust(width) for text, width in zip(row, [*widths, 0], strict=True)).rstrip())
