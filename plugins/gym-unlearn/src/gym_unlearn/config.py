"""Options of the algorithms that unlearn. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from gym_data.location import ModelName
from gym_torch import TorchAlgorithm
from gym_torch.config import Further


class Unlearning(TorchAlgorithm):
    """Base of the algorithms that make a model forget rows with `label: false`, and keep those with `label: true`.

    A subclass names the loss of an answer to forget; the fields in `loss_options` are its arguments.
    """

    rows: ClassVar[str] = "feedback"
    objective: ClassVar[str] = "gym_unlearn.objective:UnlearnObjective"
    contribution: ClassVar[str] = "gym_unlearn.training_setup:unlearning"
    dataset: ClassVar[str] = "gym_unlearn.steps:ForgetRetainSteps"
    disable_dropout: ClassVar[bool] = True
    loss: ClassVar[str] = ""
    """`module:function` from the log-probabilities of answers, those under the reference and the numbers of their tokens,
    `[samples]` each, to losses `[samples]`."""
    loss_options: ClassVar[tuple[str, ...]] = ()
    """Fields that are further arguments of `loss`."""
    referenced: ClassVar[bool] = False
    """Whether `loss` looks at the log-probabilities under the reference."""

    def evaluation_metrics(self) -> Mapping[str, str]:
        """Return the loss, and how probable answers to forget and to keep are."""
        found = {"forget_probability": "lower", "retain_probability": "higher"}
        return {**super().evaluation_metrics(), **found}

    def weights(self) -> tuple[float, float]:
        """Return what the mean loss of the rows to forget counts, and that of the rows to keep."""
        return 1.0, 0.0

    def drawn_per_forget(self) -> int:
        """Return how many rows to keep come with each row to forget; with 0, none are needed."""
        return 0

    def compares(self) -> bool:
        """Return whether each step looks at the whole distribution of the reference."""
        return False

    def precomputes(self) -> bool | Literal["auto"]:
        """Return whether the reference scores the rows to forget once, before training."""
        return False


class GradientAscent(Unlearning):
    """Gradient ascent: makes the answers to forget less likely, without end. Nothing holds on to the rest of the model.

        loss = mean log p(y) / |y|  over answers y to forget

    Use it for: a baseline, in few steps. The model breaks down soon; the methods beside it were made for that reason.
    """

    loss: ClassVar[str] = "gym_unlearn.losses:gradient_ascent"
    oracle: ClassVar[str] = "gym_unlearn.naive_losses:unlearning"


class Retaining(Unlearning):
    """Base of those that keep what rows to keep say, beside forgetting."""

    oracle: ClassVar[str] = "gym_unlearn.naive_losses:unlearning"

    gamma: Annotated[float, Field(ge=0)] = 1.0
    """Forget weight (gamma): what the mean loss of the rows to forget counts (`npo_coeff` in Unlearn-Simple)."""
    alpha: Annotated[float, Field(ge=0)] = 1.0
    """Retain weight (alpha): what the mean loss of the rows to keep counts (`grad_diff_coeff` in Unlearn-Simple). With 0, no
    such rows are needed."""
    retain_per_forget: PositiveInt = 1
    """Rows to keep in a step for each row to forget. They come in an order of their own, again only when all have come."""
    ref_model: ModelName | None = None
    """Reference model: a family, a folder or a Hub id; by default the model as it was before training."""

    def weights(self) -> tuple[float, float]:
        """Return `gamma` and `alpha`."""
        return self.gamma, self.alpha

    def drawn_per_forget(self) -> int:
        """Return `retain_per_forget`; none where they count nothing."""
        return self.retain_per_forget if self.alpha else 0

    def further(self) -> Sequence[Further]:
        """Return the reference, where something is measured against it."""
        if not (self.referenced or self.compares()):
            return ()
        return (Further(self.ref_model, stays=self.compares() or self.precomputes() is False),)

    @model_validator(mode="after")
    def _asks_it(self) -> Self:
        if self.ref_model is not None and not self.further():
            raise ValueError("`ref_model` does nothing here: only a retain loss of `KL` looks at a reference")
        return self


class ByLikelihood(Retaining):
    """Base of those that forget and keep by the log-probabilities of answers."""

    retain_loss_type: Literal["NLL", "KL"] = "NLL"
    """Retain loss: the negative log-likelihood of the answers to keep, or at their tokens the KL divergence of the policy from
    the reference; a mean over tokens, then over answers. `KL` asks the reference in every step."""

    def compares(self) -> bool:
        """Return whether the retain loss is a KL divergence that counts."""
        return self.retain_loss_type == "KL" and self.alpha > 0


class GradDiff(ByLikelihood):
    """Gradient difference: gradient ascent on the rows to forget, and fine-tuning on those to keep.

        loss = gamma mean log p(y) / |y|  over answers y to forget  +  alpha mean loss of the answers to keep

    Use it for: a baseline that keeps more than gradient ascent alone. The first term has no lower bound: a low learning rate, and
    few epochs.
    """

    loss: ClassVar[str] = "gym_unlearn.losses:gradient_ascent"


class NPO(ByLikelihood):
    """Negative preference optimization: answers to forget become less likely than they were, and are then left alone.

        loss = gamma mean -(2 / beta) log sigmoid(-beta log(p(y) / p_ref(y)))  +  alpha mean loss of the answers to keep

    p, p_ref: probability of an answer y to forget, all its tokens together, under policy and reference.

    Use it for: most cases. As `beta` goes to 0 its gradient becomes that of gradient ascent on sums of log-probabilities.
    """

    loss: ClassVar[str] = "gym_unlearn.losses:npo"
    loss_options: ClassVar[tuple[str, ...]] = ("beta",)
    referenced: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0)] = 0.1
    """Inverse temperature (beta): the larger, the sooner an answer that became unlikely is left alone."""
    precompute_ref_log_probs: bool | Literal["auto"] = "auto"
    """Precompute reference log-probabilities: score the rows to forget once before training and free the reference. `auto`: where
    it would be a second model in memory, or score the same rows several times. Not beside a retain loss of `KL`."""

    def precomputes(self) -> bool | Literal["auto"]:
        """Return the option, where the reference is not asked in every step for more."""
        return False if self.compares() else self.precompute_ref_log_probs

    @model_validator(mode="after")
    def _asked_once(self) -> Self:
        if self.compares() and self.precompute_ref_log_probs is True:
            raise ValueError(
                "`retain_loss_type: KL` asks the reference in every step: leave `precompute_ref_log_probs` out"
            )
        return self


class SimNPO(ByLikelihood):
    """Simple NPO: as NPO, without a reference and by the mean log-probability of a token.

        loss = gamma mean -(2 / beta) log sigmoid(-beta log p(y) / |y| - beta delta)  +  alpha mean loss of the answers to keep

    Use it for: answers of very different lengths, or no memory for a reference. Answers that are unlikely already are left alone.
    """

    loss: ClassVar[str] = "gym_unlearn.losses:simnpo"
    loss_options: ClassVar[tuple[str, ...]] = ("beta", "delta")

    gamma: Annotated[float, Field(ge=0)] = 0.125
    """Forget weight (gamma): what the mean loss of the rows to forget counts (`npo_coeff` in Unlearn-Simple)."""
    beta: Annotated[float, Field(gt=0)] = 4.5
    """Inverse temperature (beta): the larger, the sooner an answer that became unlikely is left alone."""
    delta: float = 0.0
    """Margin (delta): the mean negative log-likelihood of a token, in nats, around which that happens (`gamma` of the paper, over
    beta)."""


class RMU(Retaining):
    """Representation misdirection: states at one layer become noise on the rows to forget, and stay what they were on others.

        loss = gamma mean |h(y) - c u|^2 / d  over answers to forget  +  alpha mean |h(y) - h_ref(y)|^2 / d  over answers to keep

    h, h_ref: states `[d]` behind the layer that predict a token of the answer, of policy and reference, averaged over its tokens;
    u: a random direction; c: `steering_coeff`.

    Use it for: whole fields of knowledge. Gradients reach the layers up to `layer` alone; an adapter on few of them does.
    """

    objective: ClassVar[str] = "gym_unlearn.steering:SteeringObjective"
    oracle: ClassVar[str] = "gym_unlearn.naive_losses:steering"
    referenced: ClassVar[bool] = True

    layer: NonNegativeInt | None = None
    """Layer, counted from 0, behind which states are steered (`module_regex` in open-unlearning, `layer_id` in WMDP); by default
    the one at 7/32 of the depth, as layer 7 of 32."""
    steering_coeff: Annotated[float, Field(gt=0)] = 2.0
    """Steering coefficient (c): length of what states are steered to."""

    def evaluation_metrics(self) -> Mapping[str, str]:
        """Return the loss and its parts."""
        return {"loss": "lower", "forget_loss": "lower", "retain_loss": "lower"}

    def compares(self) -> bool:
        """Return that the states of the reference are needed in every step."""
        return True
