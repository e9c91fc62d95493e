"""Other losses of pairs against a reference, as a recipe names them. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import PairwisePreference, WithReference


class IPO(WithReference, PairwisePreference):
    """Identity preference optimization: the margin has an aim, 1 / (2 beta) nats for each token, and does not grow past it.

        loss = (w - l - 1 / (2 beta))^2

    w, l: mean log-ratios to the reference of a token of the chosen and of the rejected answer.

    Use it for: few or one-sided pairs, on which `dpo` goes on to widen margins that are right already: here each has an aim.

    Differs: the paper's sums over tokens are means, as in TRL, so that the aim does not depend on the length; `beta` is its
    tau.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:ipo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:ipo"
    per_token: ClassVar[bool] = True


class Hinge(WithReference, PairwisePreference):
    """SLiC: nothing is learnt from pairs whose margin is large enough.

        loss = max(0, 1 - beta (w - l))

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: pairs that are easy to tell apart: those past a margin of 1 / beta no longer pull.

    Differs: SLiC's own loss has no reference and adds fine-tuning; this is the form that RSO gave it. `ftx` adds the
    fine-tuning.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:hinge"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:hinge"


class BCOPair(WithReference, PairwisePreference):
    """Binary classifier optimization of pairs: the chosen answer is good and the rejected one bad, each by itself.

        loss = -log sigmoid(beta w) - log sigmoid(-beta l)

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: pairs of which the chosen answer is good in itself and the rejected one bad, and not only better and worse.

    Differs: the paper measures rewards from their running mean; pairs have none here. Single labels have it: `bco`.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:bco_pair"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:bco_pair"


class EXO(WithReference, PairwisePreference):
    """Efficient exact optimization: the reverse KL divergence between what the policy and what the labels prefer.

        loss = p log(p / (1 - e)) + (1 - p) log((1 - p) / e),  p = sigmoid(beta (w - l))

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens; e: `label_smoothing`.

    Use it for: a policy that should settle on the better answers (reverse KL) rather than cover all that the labels allow, as
    DPO's does.

    Differs: the labels are a pair's, and no reward model's.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:exo_pair"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:exo_pair"

    label_smoothing: Annotated[float, Field(gt=0, lt=0.5)] = 1e-3
    """Label smoothing: the share of labels that are wrong. Not 0, where the loss is finite for a deterministic policy alone."""


class NCA(WithReference, PairwisePreference):
    """Noise contrastive alignment: the chosen answer becomes likelier by itself, not only beside the rejected one.

        loss = -log sigmoid(beta w) - [log sigmoid(-beta w) + log sigmoid(-beta l)] / 2

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: chosen answers that become unlikely under `dpo`: here each has an aim of its own, and the chosen one rises.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:nca_pair"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:nca_pair"


class SPPO(WithReference, PairwisePreference):
    """Self-play preference optimization with sure labels: each answer has an aim of its own.

        loss = (w - 1 / (2 beta))^2 + (l + 1 / (2 beta))^2

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: pairs of the policy's own answers, round after round: both sides have an aim.

    Differs: the labels are sure (the paper has win rates of a preference model), and a run is one round.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:sppo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:sppo"


class APOZero(WithReference, PairwisePreference):
    """Anchored preference optimization for chosen answers that are better than the model's: up, and the rejected ones down.

        loss = 1 - sigmoid(beta w) + sigmoid(beta l)

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: chosen answers that are better than what the model says now: they rise and the rejected ones fall.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:apo_zero"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:apo_zero"


class APODown(WithReference, PairwisePreference):
    """Anchored preference optimization for chosen answers that are worse than the model's: down, the rejected ones further.

        loss = sigmoid(beta w) + 1 - sigmoid(beta (w - l))

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: chosen answers that are worse than what the model says now: both fall, the rejected ones further.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:apo_down"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:apo_down"


class DiscoPOP(WithReference, PairwisePreference):
    """A loss that was found by a language model: DPO's for pairs that are wrong, an exponential one for those that are right.

        loss = (1 - g) f(m) + g exp(-m),  m = beta (w - l),  f(m) = -log sigmoid(m),  g = sigmoid(m / discopop_tau)

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: what `dpo` is for, to be tried beside it.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:discopop"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:discopop"

    discopop_tau: Annotated[float, Field(gt=0)] = 0.05
    """DiscoPOP temperature (tau): how sharply the loss changes from one form to the other at a margin of 0."""
