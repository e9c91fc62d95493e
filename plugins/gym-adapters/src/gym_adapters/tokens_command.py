"""`gym tokens`: a tokenizer with a new vocabulary, for `adapter: trainable_tokens` to train."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import click

from gym_core import GymError
from gym_data.location import locate
from gym_data.new_tokens import add, tokenizer_of


@click.command()
@click.argument("model")
@click.argument("tokens", nargs=-1, required=True)
@click.option("--into", type=click.Path(path_type=Path), required=True, help="New directory for the model.")
@click.option("--plain", is_flag=True, help="Add plain tokens; without it they are special: never part of a text.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def tokens(model: str, tokens: tuple[str, ...], into: Path, plain: bool, as_json: bool) -> None:
    """Write a model directory whose tokenizer has these tokens too; the weights stay as they are.

    Train them with `adapter: {name: trainable_tokens, tokens: [...]}`, which makes the weights grow where they must.

    Example: `gym tokens tiny '<think>' '</think>' --into tiny-thinking`
    """
    source = locate(model)
    if into.exists() and any(into.iterdir()):
        raise GymError("the directory holds something else", where=str(into), fix="name another, or remove it")
    tokenizer = tokenizer_of(source)
    if known := sorted(set(tokens) & set(tokenizer.get_vocab())):
        raise GymError(
            f"`{known[0]}` is a token already", where=str(source), fix="leave it out: it can be trained as it is"
        )
    first = len(tokenizer)
    add(tokenizer, tokens if plain else (), () if plain else tokens)
    into.mkdir(parents=True, exist_ok=True)
    for file in sorted(path for path in source.iterdir() if path.is_file()):
        _place(file.resolve(), into / file.name)
    tokenizer.save_pretrained(into)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in tokens}
    made = {"output": str(into), "tokens": ids}
    click.echo(
        json.dumps(made, ensure_ascii=False) if as_json else f"{into} has new tokens: {len(ids)}, from {first} on"
    )


def _place(file: Path, target: Path) -> None:
    """Link weights, which are large and stay as they are, and copy everything else."""
    if file.suffix == ".safetensors" and file.stat().st_dev == target.parent.stat().st_dev:
        os.link(file, target)
    else:
        shutil.copyfile(file, target)
