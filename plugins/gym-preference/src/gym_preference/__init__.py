"""gym-preference: learning from preferences. Configuration alone; nothing heavy is imported."""

from __future__ import annotations

from gym_preference.config import PairwisePreference, PreferenceAlgorithm, WithReference
from gym_preference.pairwise.config.dpo import CDPO, DPO, LDDPO, DPONorm, RobustDPO
from gym_preference.pairwise.config.dpo_loss_types import (
    EXO,
    IPO,
    NCA,
    SPPO,
    APODown,
    APOZero,
    BCOPair,
    DiscoPOP,
    Hinge,
)
from gym_preference.pairwise.config.reference_free import CPO, ORPO, SimPO
from gym_preference.reward_models.config import ProcessRewardModel, RewardModel
from gym_preference.tdpo.config import TDPO1, TDPO2
from gym_preference.unpaired.config import BCO, KTO, UnpairedPreference

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
    "PairwisePreference",
    "PreferenceAlgorithm",
    "ProcessRewardModel",
    "RewardModel",
    "RobustDPO",
    "SimPO",
    "UnpairedPreference",
    "WithReference",
]
