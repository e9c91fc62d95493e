"""gym-preference: learning from preferences. Configuration alone; nothing heavy is imported."""

from __future__ import annotations

from gym_preference.config import PairwisePreference, PreferenceAlgorithm, WithReference
from gym_preference.pairwise.config.apo_down import APODown
from gym_preference.pairwise.config.apo_zero import APOZero
from gym_preference.pairwise.config.bco_pair import BCOPair
from gym_preference.pairwise.config.cdpo import CDPO
from gym_preference.pairwise.config.cpo import CPO
from gym_preference.pairwise.config.discopop import DiscoPOP
from gym_preference.pairwise.config.dpo import DPO
from gym_preference.pairwise.config.dpo_norm import DPONorm
from gym_preference.pairwise.config.exo import EXO
from gym_preference.pairwise.config.hinge import Hinge
from gym_preference.pairwise.config.ipo import IPO
from gym_preference.pairwise.config.ld_dpo import LDDPO
from gym_preference.pairwise.config.mpo import MPO
from gym_preference.pairwise.config.nca import NCA
from gym_preference.pairwise.config.orpo import ORPO
from gym_preference.pairwise.config.robust_dpo import RobustDPO
from gym_preference.pairwise.config.simpo import SimPO
from gym_preference.pairwise.config.sppo import SPPO
from gym_preference.reward_models.config import ProcessRewardModel, RewardModel
from gym_preference.tdpo.config import TDPO1, TDPO2
from gym_preference.unpaired.config.base import UnpairedPreference
from gym_preference.unpaired.config.bco import BCO
from gym_preference.unpaired.config.kto import KTO

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
    "MPO",
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
