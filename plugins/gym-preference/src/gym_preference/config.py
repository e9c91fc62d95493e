"""Options that all algorithms of preference learning share. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from gym_core import Recipe, RecipeError
from gym_data.kinds import Data
from gym_data.location import ModelName
from gym_torch import TorchAlgorithm
from gym_torch.config import Further
from gym_torch.following_config import MIXUP_ALPHA, MixupAlpha, SyncSteps, check_follows, check_mixture
from gym_torch.kinds import part


class PreferenceAlgorithm(TorchAlgorithm):
    """Base of the algorithms that make some responses more likely than others; an example is a pair, or a labelled response.

    The fields that a subclass adds are further arguments of its `loss`.
    """

    contribution: ClassVar[str] = "gym_preference.training_setup:preferences"
    context_parallel: ClassVar[bool] = True
    disable_dropout: ClassVar[bool] = True
    referenced: ClassVar[bool] = False
    """Whether responses are measured by how much likelier they are than under a reference."""
    loss: ClassVar[str] = ""
    """`module:function` to the losses of pairs, or of labelled responses: from their log-ratios, `beta` and the fields that a
    subclass adds."""

    beta: Annotated[float, Field(gt=0)] = 0.1
    """KL coefficient (beta): scales the log-ratio to the reference. Larger values keep the policy closer to it
    (`pref_beta` in LLaMA-Factory)."""
    ftx: Annotated[float, Field(ge=0)] = 0.0
    """SFT loss coefficient: weight of the mean negative log-likelihood per token of the chosen responses
    (`pref_ftx` in LLaMA-Factory, `rpo_alpha` in TRL)."""

    def evaluation_metrics(self) -> Mapping[str, str]:
        """Return the loss and the implicit rewards."""
        higher = dict.fromkeys(("rewards/accuracies", "rewards/margins", "rewards/chosen"), "higher")
        return {**super().evaluation_metrics(), **higher, "rewards/rejected": "lower"}

    def shares_prefixes(self) -> bool:
        """Return that samples may: a prompt has no labels, and the loss is of what the policy says of labels."""
        return True


class Referenced(PreferenceAlgorithm):
    """Base of those that measure responses against a reference: the model as it was before training, or another one."""

    referenced: ClassVar[bool] = True

    ref_model: ModelName | None = None
    """Reference model: a family, a folder or a Hub id; by default the model as it was before training."""
    ref_model_sync_steps: SyncSteps = None
    ref_model_mixup_alpha: MixupAlpha = MIXUP_ALPHA

    def check_recipe(self, recipe: Recipe) -> None:
        """Refuse a reference that is to follow weights that it does not have."""
        super().check_recipe(recipe)
        check_follows(recipe, self.ref_model_sync_steps)

    def further(self) -> Sequence[Further]:
        """Return the reference, which is asked in every step."""
        return (Further(self.ref_model, follows=self.follows),)

    @property
    def follows(self) -> bool:
        """Whether the reference follows the policy."""
        return self.ref_model_sync_steps is not None

    @model_validator(mode="after")
    def _mixes(self) -> Self:
        check_mixture(self.ref_model_sync_steps, self.ref_model_mixup_alpha)
        return self


class WithReference(Referenced):
    """Base of those that need of a reference one number for each token, which can be asked for before training."""

    precompute_ref_log_probs: bool | Literal["auto"] = "auto"
    """Precompute reference log-probabilities: score all samples once before training and free the reference, rather than score
    each batch in its step. `auto`: where it would be a second model in memory, or score the same samples several times."""

    def check_recipe(self, recipe: Recipe) -> None:
        """Refuse to score samples before the first step that come later."""
        super().check_recipe(recipe)
        data = part(recipe, Data)
        if data and data.streams() and self.precompute_ref_log_probs is True:
            raise RecipeError(
                "samples that come window by window cannot all be scored before the first step",
                key="algorithm.precompute_ref_log_probs",
                fix="leave it out: the reference is then asked in every step",
            )

    def further(self) -> Sequence[Further]:
        """Return the reference, which may be let go of before the first step."""
        stays = self.follows or self.precompute_ref_log_probs is False
        return (Further(self.ref_model, stays=stays, follows=self.follows),)

    @model_validator(mode="after")
    def _asked_again(self) -> Self:
        if self.follows and self.precompute_ref_log_probs is True:
            raise ValueError(
                "`precompute_ref_log_probs` asks the reference once, and with `ref_model_sync_steps` it changes: leave one out"
            )
        return self


class PairwisePreference(PreferenceAlgorithm):
    """Base of the algorithms that learn from pairs of responses. A loss is a function of two numbers for each pair, `[pairs]`.

    These are the log-probabilities of the chosen and of the rejected response, less those under the reference where there is one.
    """

    rows: ClassVar[str] = "preference"
    streams: ClassVar[bool] = True
    measures_apart: ClassVar[bool] = True
    objective: ClassVar[str] = "gym_preference.pairwise.objective:PairObjective"
    per_token: ClassVar[bool] = False
    """Whether log-ratios are means over the tokens of a response rather than sums."""
