"""gym-preference: learning from preferences. Configuration alone; nothing heavy is imported."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_core import Flat
from gym_preference.config import Pairwise, Preferring, Referenced
from gym_preference.reward_models.config import ProcessRewardModel, RewardModel
from gym_preference.tdpo.config import TDPO1, TDPO2
from gym_preference.unpaired.config import BCO, KTO, Judging

__version__ = "0.1.0"
__all__ = [
    "BCO",
    "CDPO",
    "CPO",
    "DPO",
    "EXO",
    "IPO",
    "KTO",
    "LDDPO",
    "NCA",
    "ORPO",
    "SPPO",
    "TDPO1",
    "TDPO2",
    "APODown",
    "APOZero",
    "BCOPair",
    "DPONorm",
    "DiscoPOP",
    "Hinge",
    "Judging",
    "Pairwise",
    "Preferring",
    "ProcessRewardModel",
    "Referenced",
    "RewardModel",
    "RobustDPO",
    "SimPO",
]


class DPO(Referenced, Pairwise):
    """Direct preference optimization: the chosen answer gains on the rejected one, measured against a reference.

        loss = -log sigmoid(beta (w - l))

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: the first choice for pairs. A longer answer has more tokens to gain with, so answers may grow: `length_bias`
    in the log tells.
    """

    loss: ClassVar[str] = "gym_preference.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.oracle:dpo"


class DPONorm(Referenced, Pairwise):
    """Length-normalised DPO: answers are compared token for token, so that a long one is not moved further.

        loss = -log sigmoid(beta (w - l))

    w, l: mean log-ratios to the reference of a token of the chosen and of the rejected answer.

    Use it for: pairs whose answers differ much in length, or where `dpo` makes answers longer and longer.

    Differs: `beta` is larger than DPO's, for a mean over tokens is smaller than their sum.
    """

    loss: ClassVar[str] = "gym_preference.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.oracle:dpo_norm"
    per_token: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0), Flat("pref_beta", default=0.1)] = 5.0
    """KL coefficient (beta). A log-ratio is a mean over tokens here, so it is larger than DPO's."""


class LDDPO(Referenced, Pairwise):
    """Length-desensitised DPO: tokens of the longer answer that the shorter one has no match for count less.

        loss = -log sigmoid(beta (w - l))

    w, l: as DPO's, but tokens beyond the length of the shorter answer count `ld_alpha` times.

    Use it for: answers that become longer under `dpo` while `dpo_norm` learns too little: `ld_alpha` lies between the two.
    """

    objective: ClassVar[str] = "gym_preference.objective:Desensitised"
    loss: ClassVar[str] = "gym_preference.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.oracle:ld_dpo"

    ld_alpha: Annotated[float, Field(ge=0, le=1), Flat("ld_alpha")] = 0.5
    """LD-DPO alpha: weight of the log-ratios of tokens beyond the length of the shorter response; 1 makes it DPO."""


class CDPO(Referenced, Pairwise):
    """Conservative DPO: some labels are wrong, so no answer is ever surely the better one.

        loss = -(1 - e) log sigmoid(beta (w - l)) - e log sigmoid(beta (l - w))

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens; e: `label_smoothing`.

    Use it for: labels of which a known share is wrong. The margin has an aim, log((1 - e) / e) / beta, and does not grow past
    it.
    """

    loss: ClassVar[str] = "gym_preference.losses:cdpo"
    oracle: ClassVar[str] = "gym_preference.oracle:cdpo"

    label_smoothing: Annotated[float, Field(ge=0, lt=0.5), Flat("dpo_label_smoothing", float)] = 0.1
    """Label smoothing: the share of labels that are wrong."""


class RobustDPO(Referenced, Pairwise):
    """DPO whose loss is, in the mean over wrong labels, what it would be with right ones.

        loss = [-(1 - e) log sigmoid(beta (w - l)) + e log sigmoid(beta (l - w))] / (1 - 2 e)

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens; e: `label_smoothing`.

    Use it for: labels that were flipped at random, at a rate that is known: in the mean over flips it is DPO's loss on right
    labels. Where the rate is a guess, `cdpo` is safer.

    Differs: the loss of a single pair may be negative, and its margin has no aim.
    """

    loss: ClassVar[str] = "gym_preference.losses:robust_dpo"
    oracle: ClassVar[str] = "gym_preference.oracle:robust_dpo"

    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Label smoothing: the share of labels that are wrong."""


class IPO(Referenced, Pairwise):
    """Identity preference optimization: the margin has an aim, 1 / (2 beta) nats for each token, and does not grow past it.

        loss = (w - l - 1 / (2 beta))^2

    w, l: mean log-ratios to the reference of a token of the chosen and of the rejected answer.

    Use it for: few or one-sided pairs, on which `dpo` goes on to widen margins that are right already: here each has an aim.

    Differs: the paper's sums over tokens are means, as in TRL, so that the aim does not depend on the length; `beta` is its
    tau.
    """

    loss: ClassVar[str] = "gym_preference.losses:ipo"
    oracle: ClassVar[str] = "gym_preference.oracle:ipo"
    per_token: ClassVar[bool] = True


class Hinge(Referenced, Pairwise):
    """SLiC: nothing is learnt from pairs whose margin is large enough.

        loss = max(0, 1 - beta (w - l))

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: pairs that are easy to tell apart: those past a margin of 1 / beta no longer pull.

    Differs: SLiC's own loss has no reference and adds fine-tuning; this is the form that RSO gave it. `ftx` adds the
    fine-tuning.
    """

    loss: ClassVar[str] = "gym_preference.losses:hinge"
    oracle: ClassVar[str] = "gym_preference.oracle:hinge"


class BCOPair(Referenced, Pairwise):
    """Binary classifier optimization of pairs: the chosen answer is good and the rejected one bad, each by itself.

        loss = -log sigmoid(beta w) - log sigmoid(-beta l)

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: pairs of which the chosen answer is good in itself and the rejected one bad, and not only better and worse.

    Differs: the paper measures rewards from their running mean; pairs have none here. Single labels have it: `bco`.
    """

    loss: ClassVar[str] = "gym_preference.losses:bco_pair"
    oracle: ClassVar[str] = "gym_preference.oracle:bco_pair"


class EXO(Referenced, Pairwise):
    """Efficient exact optimization: the reverse KL divergence between what the policy and what the labels prefer.

        loss = p log(p / (1 - e)) + (1 - p) log((1 - p) / e),  p = sigmoid(beta (w - l))

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens; e: `label_smoothing`.

    Use it for: a policy that should settle on the better answers (reverse KL) rather than cover all that the labels allow, as
    DPO's does.

    Differs: the labels are a pair's, and no reward model's.
    """

    loss: ClassVar[str] = "gym_preference.losses:exo_pair"
    oracle: ClassVar[str] = "gym_preference.oracle:exo_pair"

    label_smoothing: Annotated[float, Field(gt=0, lt=0.5)] = 1e-3
    """Label smoothing: the share of labels that are wrong. Not 0, where the loss is finite for a deterministic policy alone."""


class NCA(Referenced, Pairwise):
    """Noise contrastive alignment: the chosen answer becomes likelier by itself, not only beside the rejected one.

        loss = -log sigmoid(beta w) - [log sigmoid(-beta w) + log sigmoid(-beta l)] / 2

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: chosen answers that become unlikely under `dpo`: here each has an aim of its own, and the chosen one rises.
    """

    loss: ClassVar[str] = "gym_preference.losses:nca_pair"
    oracle: ClassVar[str] = "gym_preference.oracle:nca_pair"


class SPPO(Referenced, Pairwise):
    """Self-play preference optimization with sure labels: each answer has an aim of its own.

        loss = (w - 1 / (2 beta))^2 + (l + 1 / (2 beta))^2

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: pairs of the policy's own answers, round after round: both sides have an aim.

    Differs: the labels are sure (the paper has win rates of a preference model), and a run is one round.
    """

    loss: ClassVar[str] = "gym_preference.losses:sppo"
    oracle: ClassVar[str] = "gym_preference.oracle:sppo"


class APOZero(Referenced, Pairwise):
    """Anchored preference optimization for chosen answers that are better than the model's: up, and the rejected ones down.

        loss = 1 - sigmoid(beta w) + sigmoid(beta l)

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: chosen answers that are better than what the model says now: they rise and the rejected ones fall.
    """

    loss: ClassVar[str] = "gym_preference.losses:apo_zero"
    oracle: ClassVar[str] = "gym_preference.oracle:apo_zero"


class APODown(Referenced, Pairwise):
    """Anchored preference optimization for chosen answers that are worse than the model's: down, the rejected ones further.

        loss = sigmoid(beta w) + 1 - sigmoid(beta (w - l))

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: chosen answers that are worse than what the model says now: both fall, the rejected ones further.
    """

    loss: ClassVar[str] = "gym_preference.losses:apo_down"
    oracle: ClassVar[str] = "gym_preference.oracle:apo_down"


class DiscoPOP(Referenced, Pairwise):
    """A loss that was found by a language model: DPO's for pairs that are wrong, an exponential one for those that are right.

        loss = (1 - g) f(m) + g exp(-m),  m = beta (w - l),  f(m) = -log sigmoid(m),  g = sigmoid(m / discopop_tau)

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: what `dpo` is for, to be tried beside it.
    """

    loss: ClassVar[str] = "gym_preference.losses:discopop"
    oracle: ClassVar[str] = "gym_preference.oracle:discopop"

    discopop_tau: Annotated[float, Field(gt=0)] = 0.05
    """DiscoPOP temperature (tau): how sharply the loss changes from one form to the other at a margin of 0."""


class SimPO(Pairwise):
    """Simple preference optimization: mean log-probabilities of the answers themselves, apart by a margin; no reference.

        loss = -log sigmoid(beta (w - l) - simpo_gamma)

    w, l: mean log-probabilities of a token of the chosen and of the rejected answer.

    Use it for: no memory or time for a reference. Nothing holds the policy, so the learning rate must be low and `simpo_gamma`
    tuned.
    """

    loss: ClassVar[str] = "gym_preference.losses:simpo"
    oracle: ClassVar[str] = "gym_preference.oracle:simpo"
    per_token: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0), Flat("pref_beta", default=0.1)] = 2.0
    """SimPO beta: scales the difference of the mean log-probabilities."""
    simpo_gamma: Annotated[float, Field(ge=0), Flat("simpo_gamma", default=0.5)] = 1.0
    """SimPO target reward margin (gamma) between the two responses."""


class ORPO(Pairwise):
    """Odds ratio preference optimization: fine-tuning on the chosen answer and a term that keeps the rejected one down.

        loss = -w - beta log sigmoid(log odds(w) - log odds(l)),  log odds(x) = x - log(1 - exp(x))

    w, l: mean log-probabilities of a token of the chosen and of the rejected answer.

    Use it for: a base model and pairs, in one run: it fine-tunes on the chosen answers as it goes, and needs no reference.

    Differs: `beta` is the paper's lambda.
    """

    loss: ClassVar[str] = "gym_preference.losses:orpo"
    oracle: ClassVar[str] = "gym_preference.oracle:orpo"
    per_token: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0), Flat("pref_beta")] = 0.1
    """ORPO lambda: weight of the odds ratio term beside the negative log-likelihood of the chosen response."""


class CPO(Pairwise):
    """Contrastive preference optimization: DPO with no reference, held in place by learning the chosen answer.

        loss = -log sigmoid(beta (w - l)) + ftx nll

    w, l: log-probabilities of the chosen and the rejected answer, summed over their tokens; nll: the mean of -log p over the
    tokens of the chosen one.

    Use it for: no memory for a reference, and chosen answers that are good enough to be learnt by themselves.
    """

    loss: ClassVar[str] = "gym_preference.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.oracle:cpo"

    ftx: Annotated[float, Field(ge=0), Flat("pref_ftx")] = 1.0
    """SFT loss coefficient: weight of the mean negative log-likelihood per token of the chosen response."""
