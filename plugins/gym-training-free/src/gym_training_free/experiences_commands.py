"""`gym experiences`: libraries as text, as data, side by side, and measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click

from gym_core.errors import GymError, RecipeError

_library = click.argument("library", type=click.Path(path_type=Path))
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


HARM = 0.05  #: significance from which a library is said to do harm


@click.group()
def experiences() -> None:
    """Show, compare, export and test what a model learned without training.

    LIBRARY is the output of a run, its `experience` folder, or an `experiences.json`.
    """


@experiences.command()
@_library
@_json
def show(library: Path, as_json: bool) -> None:
    """List the experiences of a library, and what was measured of it.

    Example: `gym experiences show runs/free`
    """
    from gym_training_free.experience.library import ExperienceLibrary

    found = ExperienceLibrary.read(library)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2, ensure_ascii=False))
        return
    held = found.evidence.get("held_out")
    before = "with what it began with" if found.evidence.get("begun_with") else "without"
    for one in found:
        gain = "" if one.uplift is None else f", gain {one.uplift:+.3f}"
        tags = f", {', '.join(one.tags)}" if one.tags else ""
        click.echo(f"[{one.id}] {one.text}\n      {one.origin}, used {one.uses} times{gain}{tags}")
    click.echo(
        f"{len(found)} experiences, fingerprint {found.fingerprint()}; "
        + (f"held out: {held['old']:.3f} {before}, {held['new']:.3f} with" if held else "not evaluated")
    )


@experiences.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@_json
def diff(old: Path, new: Path, as_json: bool) -> None:
    """Say how two libraries differ. Experiences that were added, changed and deleted are named by id.

    Example: `gym experiences diff runs/old runs/new`
    """
    from gym_training_free.experience.library import ExperienceLibrary

    before, after = ({one.id: one.text for one in ExperienceLibrary.read(path)} for path in (old, new))
    identities = sorted({*before, *after}, key=lambda identity: int(identity[1:]))
    changes = [(each, before.get(each), after.get(each)) for each in identities if before.get(each) != after.get(each)]
    if as_json:
        click.echo(
            json.dumps([{"id": each, "old": a, "new": b} for each, a, b in changes], indent=2, ensure_ascii=False)
        )
        return
    for each, a, b in changes:
        click.echo("\n".join(f"{sign} [{each}] {text}" for sign, text in (("-", a), ("+", b)) if text is not None))
    if not changes:
        click.echo("they are the same")


@experiences.command()
@_library
@click.option(
    "--format",
    "form",
    default="prompt",
    show_default=True,
    type=click.Choice(["prompt", "yaml", "json"]),
    help="What to write.",
)
@click.option("--into", type=click.Path(path_type=Path, dir_okay=False), help="File to write; by default the terminal.")
def export(library: Path, form: str, into: Path | None) -> None:
    """Write a library as text for a system prompt, as YAML or as JSON.

    Example: `gym experiences export runs/free`
    """
    from gym_core.files import write_atomically
    from gym_training_free.experience.library import ExperienceLibrary
    from gym_training_free.session import system_prompt

    found = ExperienceLibrary.read(library)
    texts: dict[str, Callable[[], str]] = {
        "prompt": lambda: system_prompt(found),
        "yaml": found.to_yaml,
        "json": lambda: json.dumps(found.to_json(), indent=1, ensure_ascii=False),
    }
    text = texts[form]().rstrip("\n")
    if into is None:
        click.echo(text)
        return
    write_atomically(into, text + "\n")
    click.echo(f"wrote {into}")


@experiences.command()
@_library
@click.argument("recipe", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--samples", default=1, show_default=True, type=click.IntRange(min=1), help="Answers to each question.")
@_json
def test(library: Path, recipe: Path, overrides: tuple[str, ...], samples: int, as_json: bool) -> None:
    """Measure a library. All questions of a recipe are asked with it and without, each with the same seed.

    RECIPE names model, questions and rewards, as for `gym train`. Exit code 1 where the library does harm.

    Example: `gym experiences test runs/free recipe.yaml --samples 4`
    """
    from gym_core.recipe import load_recipe
    from gym_training_free.endpoint.ledger import dollars
    from gym_training_free.evaluation import measure
    from gym_training_free.experience.library import ExperienceLibrary

    found = ExperienceLibrary.read(library)
    loaded = load_recipe(recipe, overrides)
    loaded.check()
    measured = measure(found, loaded, samples)
    compared, spent, unpriced = measured.compared, measured.spent, measured.unpriced
    if compared is None:
        raise RecipeError(
            "no answer has a reward", key="algorithm.rewards", fix="name rewards that judge the questions"
        )
    if as_json:
        sums = {"cost": spent.cost, "unpriced": unpriced, "tokens": spent.usage.total, "taught": measured.taught}
        click.echo(json.dumps(compared.to_json() | sums, indent=2))
    else:
        click.echo(
            f"{compared.old:.3f} without, {compared.new:.3f} with; {compared.better} of {compared.pairs} answers better, "
            f"{compared.worse} worse, p(harm) {compared.p_harm:.3f}; {spent.usage.total:,} tokens"
            f", {dollars(spent.cost, unpriced)}"
        )
        if measured.taught:
            click.echo(f"{measured.taught} of these questions taught it: take others to know what it is worth")
    if compared.p_harm < HARM:
        raise GymError("the library does harm on these questions", where=str(library), fix="do not use it for them")
