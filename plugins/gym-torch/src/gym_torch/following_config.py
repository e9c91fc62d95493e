"""Options of an algorithm whose reference can follow the policy (`gym_torch.following_reference`). Nothing heavy."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from gym_core import Recipe, RecipeError
from gym_torch.kinds import Adapter, part

SyncSteps = Annotated[
    PositiveInt | None,
    Field(
        description="A reference that follows the policy: after every so many steps its weights become the mixture that "
        "`ref_model_mixup_alpha` says (`sync_ref_model` in TRL turns it on, with 512 steps). By default the reference stays what "
        "it was."
    ),
]
MixupAlpha = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        description="A reference that follows the policy: share of the policy in the mixture, that of the reference as it was "
        "being the rest.",
    ),
]
MIXUP_ALPHA = 0.6  #: the default, as in TRL


def check_mixture(every: int | None, alpha: float) -> None:
    """Raise ValueError where a share is named of a mixture that is never made."""
    if alpha != MIXUP_ALPHA and every is None:
        raise ValueError("`ref_model_mixup_alpha` does nothing without `ref_model_sync_steps`")


def check_follows(recipe: Recipe, every: int | None) -> None:
    """Raise RecipeError where a reference is to follow weights that it does not have."""
    adapter = part(recipe, Adapter)
    if every is not None and adapter is not None and not adapter.saves_model:
        raise RecipeError(
            "the weights of the model do not train with this adapter: a reference has none that could follow the policy",
            key="algorithm.ref_model_sync_steps",
            fix="train the weights of the model (`adapter: full`), or leave it out",
        )
