"""gym-sft: learning from examples. Configuration alone; the code that runs is in `objective.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from gym_data.location import ModelName
from gym_torch import TorchAlgorithm
from gym_torch.config import Further

__version__ = "0.1.0"
__all__ = ["ASFT", "DFT", "EAFT", "GKD", "SFT", "Pretrain"]


class MeasuresTokens(TorchAlgorithm):
    """Base of what can measure more of each trained token than how probable it is."""

    token_metrics: bool = False
    """Whether to measure `mean_token_accuracy` and `entropy` of the trained tokens too, in training and in evaluations."""

    def evaluation_metrics(self) -> Mapping[str, str]:
        """Return also how many tokens are right, where that is measured."""
        return {**super().evaluation_metrics(), **({"mean_token_accuracy": "higher"} if self.token_metrics else {})}


class LearnsTokens(MeasuresTokens):
    """Base of what learns how probable the next token is, and no more."""

    objective: ClassVar[str] = "gym_sft.objective:next_token"
    oracle: ClassVar[str] = "gym_sft.naive_losses:next_token"
    context_parallel: ClassVar[bool] = True
    streams: ClassVar[bool] = True
    measures_apart: ClassVar[bool] = True

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Label smoothing: the share of each label that all tokens of the vocabulary have alike, in training and in evaluations
    (`label_smoothing_factor` in transformers)."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.token_metrics and self.label_smoothing:
            raise ValueError("token_metrics are not measured beside label_smoothing: leave one of them out")
        return self


class LearnsAnswers(TorchAlgorithm):
    """Base of what learns the answers of conversations."""

    contribution: ClassVar[str] = "gym_sft.accuracy:supervised"
    context_parallel: ClassVar[bool] = True
    rows: ClassVar[str] = "conversation"
    branches: ClassVar[bool] = True
    streams: ClassVar[bool] = True
    measures_apart: ClassVar[bool] = True

    compute_accuracy: bool = False
    """Whether evaluations also measure `accuracy`: the share of an answer's tokens that are the most probable ones, averaged over
    answers. It costs another forward pass."""

    def evaluation_metrics(self) -> Mapping[str, str]:
        """Return the loss, and the accuracy where it is measured."""
        return {**super().evaluation_metrics(), **({"accuracy": "higher"} if self.compute_accuracy else {})}


class SFT(LearnsTokens, LearnsAnswers):
    """Supervised fine-tuning: learns to give the answers of conversations. Prompts are read, not trained on.

        loss = -(1 - e) log p - e mean log q

    p: probability of a trained token; q: of each token of the vocabulary there; e: `label_smoothing`.
    """


class DFT(MeasuresTokens, LearnsAnswers):
    """Dynamic fine-tuning: each token counts as much as the model already believed in it.

        loss = -sg(p) log p

    p: probability of a trained token; sg: no gradient.

    Use it for: answers that the model should take on without being pulled towards tokens that it holds for impossible.
    """

    objective: ClassVar[str] = "gym_sft.weighted:Dynamic"
    measure: ClassVar[str] = "probability"  # the loss, p log p without its gradient, rises before it falls
    better: ClassVar[str] = "higher"
    oracle: ClassVar[str] = "gym_sft.naive_losses:dynamic"


class EAFT(LearnsAnswers):
    """Entropy-adaptive fine-tuning: a token counts little where the model is sure, and so where it is sure of something else.

        loss = -sg(H / 3)^alpha log p

    p: probability of a trained token; H: entropy of the 20 most probable tokens there, at most ln 20, nearly 3; sg: no gradient.

    Use it for: new knowledge that should not overwrite what the model knows.
    """

    objective: ClassVar[str] = "gym_sft.weighted:EntropyAdaptive"
    oracle: ClassVar[str] = "gym_sft.naive_losses:entropy_adaptive"

    alpha: Annotated[float, Field(ge=0)] = 1.0
    """EAFT exponent (alpha): 0 makes it SFT."""


class ASFT(LearnsAnswers):
    """Anchored fine-tuning: DFT, and a penalty on departing from the model as it was.

        loss = -sg(p) log p + alpha KL(reference || policy)

    p: probability of a trained token; KL: over the vocabulary, at that token; sg: no gradient.

    Use it for: DFT in a narrow field, where without an anchor the model drifts. It needs the reference at every step.
    """

    contribution: ClassVar[str] = "gym_sft.weighted:anchored"
    objective: ClassVar[str] = "gym_sft.weighted:Anchored"
    measure: ClassVar[str] = "probability"  # the loss, p log p without its gradient, rises before it falls
    better: ClassVar[str] = "higher"
    oracle: ClassVar[str] = "gym_sft.naive_losses:anchored"
    disable_dropout: ClassVar[bool] = True

    alpha: Annotated[float, Field(ge=0)] = 0.1
    """Coefficient of the KL divergence (alpha): 0 makes it DFT."""
    ref_model: ModelName | None = None
    """Reference model: a family, a folder or a Hub id; by default the model as it was before training."""

    def further(self) -> Sequence[Further]:
        """Return the reference."""
        return (Further(self.ref_model),)


class GKD(LearnsAnswers):
    """Generalized knowledge distillation: learns the distributions of a teacher at each token of the answers.

        loss = beta KL(P || M) + (1 - beta) KL(Q || M) - ftx log q,  M = beta P + (1 - beta) Q

    P, Q: distributions of teacher and policy over the vocabulary, at `temperature`; q: what the policy gives the token. With
    `beta` 0 it is KL(P || Q), with 1 KL(Q || P).

    Use it for: a small model that is to answer as a large one of the same tokenizer does. Answers may be the teacher's own.
    """

    contribution: ClassVar[str] = "gym_sft.weighted:anchored"
    objective: ClassVar[str] = "gym_sft.distillation:Distillation"
    oracle: ClassVar[str] = "gym_sft.naive_losses:distilled"

    teacher_model: ModelName | None = None
    """Teacher: a family, a folder or a Hub id, with the tokenizer of the model; by default the model as it was before training,
    from which `ftx` then leads away."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Interpolation between the forward KL divergence, at 0, which covers what the teacher may say, and the reverse one, at 1,
    which seeks what it says most."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature that both distributions are compared at."""
    ftx: Annotated[float, Field(ge=0, examples=[1.0])] = 0.0
    """SFT loss coefficient: weight of the negative log-likelihood of the answers, beside the divergence."""

    def further(self) -> Sequence[Further]:
        """Return the teacher."""
        return (Further(self.teacher_model, key="algorithm.teacher_model"),)

    @model_validator(mode="after")
    def _leads_somewhere(self) -> Self:
        if self.teacher_model is None and not self.ftx:
            raise ValueError("name a `teacher_model`: the model itself teaches nothing where `ftx` is 0")
        return self


class Pretrain(LearnsTokens):
    """Continued pre-training: learns every token of plain text."""

    rows: ClassVar[str] = "text"
