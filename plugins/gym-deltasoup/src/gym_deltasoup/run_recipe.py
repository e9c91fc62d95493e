"""Carries out a merge that a recipe describes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from gym_core import Artifact, RecipeError
from gym_core.component import load_object
from gym_core.files import expanded
from gym_data.location import artifact_at
from gym_deltasoup.artifact_merge import MergedArtifact, merge_artifacts
from gym_deltasoup.recipe import InputOptions, MergeRecipe
from gym_deltasoup.sources.inputs import Input
from gym_deltasoup.sources.stacks import Piece
from gym_deltasoup.vector_merge import expected

DTYPES = {"keep": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def merged(recipe: MergeRecipe, announce: Callable[[str], None] | None = None) -> MergedArtifact:
    """Merge what a recipe names; `announce` is told what has to be said before.

    Raises what `merge_artifacts` does, and RecipeError where there is no such function.
    """
    inputs = [_input(each) for each in recipe.inputs]
    hostile = recipe.hostile
    if hostile is None:
        hostile = expected(recipe.merger, len(inputs), None, recipe.byzantine_threshold)
    return merge_artifacts(
        recipe.merger,
        inputs,
        Path(recipe.output),
        base=recipe.base,
        hostile=hostile,
        trusted=recipe.trusted,
        evaluate=None if recipe.evaluate is None else _function(recipe.evaluate),
        rank=recipe.rank,
        dtype=DTYPES[recipe.dtype],
        tokenizer=recipe.tokenizer,
        chat_template=recipe.chat_template,
        announce=announce,
    )


def _input(said: InputOptions) -> Input:
    if said.stack is None:
        return Input(_found(said.path), said.name or str(Path(said.path)), said.weight, said.density)
    pieces = tuple(Piece(_found(each.path), *each.layers) for each in said.stack)
    names = "+".join(f"{Path(each.path)}[{each.layers[0]}:{each.layers[1]}]" for each in said.stack)
    return Input(pieces[0].path, said.name or names, said.weight, said.density, pieces)


def _found(name: str) -> Path:
    """Return what lies in a folder of this name, or else the model of a family or of the Hub."""
    folder = expanded(name)
    return folder if folder.exists() else artifact_at(name, key="inputs").path


def _function(reference: str) -> Callable[[Artifact], float]:
    try:
        found: Callable[[Artifact], float] = load_object(reference)
    except (ImportError, AttributeError) as error:
        why = f"there is no function `{reference}` ({error})"
        raise RecipeError(
            why, key="evaluate", fix="write `package.module:function`, of something that is installed"
        ) from None
    return found
