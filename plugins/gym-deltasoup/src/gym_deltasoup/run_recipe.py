"""Carries out a merge that a recipe describes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gym_core import Artifact, RecipeError
from gym_core.component import load_object
from gym_deltasoup.artifact_merge import MergedArtifact, merge_artifacts
from gym_deltasoup.recipe import MergeRecipe
from gym_deltasoup.sources.inputs import Input
from gym_deltasoup.vector_merge import expected


def merged(recipe: MergeRecipe, announce: Callable[[str], None] | None = None) -> MergedArtifact:
    """Merge what a recipe names; `announce` is told what has to be said before.

    Raises what `merge_artifacts` does, and RecipeError where there is no such function.
    """
    inputs = [Input(Path(each.path), each.name, each.weight, each.density) for each in recipe.inputs]
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
        announce=announce,
    )


def _function(reference: str) -> Callable[[Artifact], float]:
    try:
        found: Callable[[Artifact], float] = load_object(reference)
    except (ImportError, AttributeError) as error:
        why = f"there is no function `{reference}` ({error})"
        raise RecipeError(
            why, key="evaluate", fix="write `package.module:function`, of something that is installed"
        ) from None
    return found
