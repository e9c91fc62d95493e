"""gym-preference: learning from preferences. Configuration alone; nothing heavy is imported."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_core import Flat
from gym_preference.config import Pairwise, Preferring, Referenced
from gym_preference.judged.config import BCO, KTO, Judging
from gym_preference.scores.config import ProcessRewardModel, RewardModel
from gym_preference.tokens.config import TDPO1, TDPO2

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
    """Direct preference optimization: the chosen answer gains on the rejected one, measured against a reference."""

    loss: ClassVar[str] = "gym_preference.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.oracle:dpo"


class DPONorm(Referenced, Pairwise):
    """Length-normalised DPO: answers are compared token for token, so that a long one is not moved further."""

    loss: ClassVar[str] = "gym_preference.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.oracle:dpo_norm"
    per_token: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0), Flat("pref_beta", default=0.1)] = 5.0
    """How much a log-ratio of answers counts; a mean over tokens is small, so this is large."""


class LDDPO(Referenced, Pairwise):
    """Length-desensitised DPO: tokens of the longer answer that the shorter one has no match for count less."""

    objective: ClassVar[str] = "gym_preference.objective:Desensitised"
    loss: ClassVar[str] = "gym_preference.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.oracle:ld_dpo"

    alpha: Annotated[float, Field(ge=0, le=1), Flat("ld_alpha")] = 0.5
    """What tokens beyond the length of the shorter answer count: 1 makes it DPO."""


class CDPO(Referenced, Pairwise):
    """Conservative DPO: some labels are wrong, so no answer is ever surely the better one."""

    loss: ClassVar[str] = "gym_preference.losses:cdpo"
    oracle: ClassVar[str] = "gym_preference.oracle:cdpo"

    label_smoothing: Annotated[float, Field(ge=0, lt=0.5), Flat("dpo_label_smoothing", float)] = 0.1
    """Share of the labels that are wrong."""


class RobustDPO(Referenced, Pairwise):
    """DPO whose loss is, in the mean over wrong labels, what it would be with right ones."""

    loss: ClassVar[str] = "gym_preference.losses:robust_dpo"
    oracle: ClassVar[str] = "gym_preference.oracle:robust_dpo"

    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Share of the labels that are wrong."""


class IPO(Referenced, Pairwise):
    """Identity preference optimization: the margin has an aim, 1 / (2 beta) nats for each token, and does not grow past it."""

    loss: ClassVar[str] = "gym_preference.losses:ipo"
    oracle: ClassVar[str] = "gym_preference.oracle:ipo"
    per_token: ClassVar[bool] = True


class Hinge(Referenced, Pairwise):
    """SLiC: nothing is learnt from pairs whose margin is large enough."""

    loss: ClassVar[str] = "gym_preference.losses:hinge"
    oracle: ClassVar[str] = "gym_preference.oracle:hinge"


class BCOPair(Referenced, Pairwise):
    """Binary classifier optimization of pairs: the chosen answer is good and the rejected one bad, each by itself."""

    loss: ClassVar[str] = "gym_preference.losses:bco_pair"
    oracle: ClassVar[str] = "gym_preference.oracle:bco_pair"


class EXO(Referenced, Pairwise):
    """Efficient exact optimization: the reverse KL divergence between what the policy and what the labels prefer."""

    loss: ClassVar[str] = "gym_preference.losses:exo_pair"
    oracle: ClassVar[str] = "gym_preference.oracle:exo_pair"

    label_smoothing: Annotated[float, Field(gt=0, lt=0.5)] = 1e-3
    """Share of the labels that are wrong; not 0, for then no policy that is not sure has a finite loss."""


class NCA(Referenced, Pairwise):
    """Noise contrastive alignment: the chosen answer becomes likelier by itself, not only beside the rejected one."""

    loss: ClassVar[str] = "gym_preference.losses:nca_pair"
    oracle: ClassVar[str] = "gym_preference.oracle:nca_pair"


class SPPO(Referenced, Pairwise):
    """Self-play preference optimization with sure labels: each answer has an aim of its own."""

    loss: ClassVar[str] = "gym_preference.losses:sppo"
    oracle: ClassVar[str] = "gym_preference.oracle:sppo"


class APOZero(Referenced, Pairwise):
    """Anchored preference optimization for chosen answers that are better than the model's: up, and the rejected ones down."""

    loss: ClassVar[str] = "gym_preference.losses:apo_zero"
    oracle: ClassVar[str] = "gym_preference.oracle:apo_zero"


class APODown(Referenced, Pairwise):
    """Anchored preference optimization for chosen answers that are worse than the model's: down, the rejected ones further."""

    loss: ClassVar[str] = "gym_preference.losses:apo_down"
    oracle: ClassVar[str] = "gym_preference.oracle:apo_down"


class DiscoPOP(Referenced, Pairwise):
    """A loss that was found by a language model: DPO's for pairs that are wrong, an exponential one for those that are right."""

    loss: ClassVar[str] = "gym_preference.losses:discopop"
    oracle: ClassVar[str] = "gym_preference.oracle:discopop"

    temperature: Annotated[float, Field(gt=0)] = 0.05
    """How suddenly one loss turns into the other where the margin changes its sign."""


class SimPO(Pairwise):
    """Simple preference optimization: mean log-probabilities of the answers themselves, apart by a margin; no reference."""

    loss: ClassVar[str] = "gym_preference.losses:simpo"
    oracle: ClassVar[str] = "gym_preference.oracle:simpo"
    per_token: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0), Flat("pref_beta", default=0.1)] = 2.0
    """How much a nat between the mean log-probabilities counts."""
    gamma: Annotated[float, Field(ge=0), Flat("simpo_gamma", default=0.5)] = 1.0
    """How far apart the rewards of the two answers are to be."""


class ORPO(Pairwise):
    """Odds ratio preference optimization: fine-tuning on the chosen answer and a term that keeps the rejected one down."""

    loss: ClassVar[str] = "gym_preference.losses:orpo"
    oracle: ClassVar[str] = "gym_preference.oracle:orpo"
    per_token: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0), Flat("pref_beta")] = 0.1
    """What the odds ratio counts beside the negative log-likelihood of the chosen answer (lambda in the paper)."""


class CPO(Pairwise):
    """Contrastive preference optimization: DPO with no reference, held in place by learning the chosen answer."""

    loss: ClassVar[str] = "gym_preference.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.oracle:cpo"

    ftx: Annotated[float, Field(ge=0), Flat("pref_ftx")] = 1.0
    """What the mean negative log-likelihood of the tokens of the chosen answer counts beside the loss."""
