"""`gym quantize`: what a run made, in fewer bits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from gym_core import GymError
from gym_data.location import artifact_at
from gym_manage.recorded import Recorded, found_in, may_be_name
from gym_manage.reopened import options, reopened

CHATS = {"model": "", "data": "", "algorithm": "sft"}
"""Recipe of what no run made: samples are what is learnt from in rows of their shape, and options of the quantizer name them."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--with", "name", help="Quantizer; default that of the recipe, else rtn.")
@click.option("--into", type=click.Path(path_type=Path), help="Where to write; default RUN/quantized-NAME.")
@click.option("--base", help="Where the base of an adapter or a delta lies now, if it was moved.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def quantize(
    run: Path, overrides: tuple[str, ...], name: str | None, into: Path | None, base: str | None, as_json: bool
) -> None:
    """Quantize what a trained RUN made, or RUN/checkpoints/step-...; KEY=VALUE sets an option of the quantizer.

    RUN may also be the folder of an artifact, as of `gym merge`, or of a model of transformers, a family, or an id on the Hub,
    with --into; samples to calibrate and to measure on are then conversations, texts, pairs or prompts that `data=FILE` names.

    `gym plugins list --kind quantizers` names them, and `gym plugins show awq` lists the options of one.

    Example: `gym quantize runs/first --with awq bits=4`
    """
    found = _named(run) if may_be_name(run) else found_in(run)
    said = found.recipe.get("quantization")
    chosen = (
        {**said, **options(said["name"], overrides)} if said and name is None else options(name or "rtn", overrides)
    )
    from gym_torch.checkpoints.base_fingerprint import based_on  # torch takes its time

    trained = based_on(found.trained, base)
    recipe = {**(found.recipe or CHATS), "quantization": chosen}
    if base is not None and isinstance(recipe.get("model"), dict):
        recipe["model"] = {**recipe["model"], "path": trained.base}
    again, hook = reopened(recipe, found.output)
    if not found.recipe:
        again = replace(again, recipe=replace(again.recipe, data=None))
    if again.recipe.quantization and again.recipe.quantization.moment == "load":
        short = chosen["name"].rpartition("/")[2]
        raise GymError(
            f"{short} quantizes a model while it is loaded, not one that was trained",
            key="--with",
            fix=f"`--with encoded quantizer={short}` writes what it makes; `gym plugins list --kind quantizers` names others",
        )
    target = into or found.place(f"quantized-{chosen['name'].rpartition('/')[2]}")
    made = hook.quantize(run=again, artifact=trained, into=target)
    click.echo(json.dumps({"quantized": str(made.path)}) if as_json else f"wrote {made.path}")


def _named(name: Path) -> Recorded:
    """Return the model of a family, or of the Hub. Raises what `artifact_at` raises."""
    return Recorded(name, artifact := artifact_at(str(name)), artifact, {}, "")
