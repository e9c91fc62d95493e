"""gym-adapters: which weights of a model train. These are the options; peft is imported when one is built."""

from __future__ import annotations

from gym_adapters.config.factored import LoHa, LoKr, VeRA
from gym_adapters.config.lora import AdaLoRA, DoRA, LoRA, RsLoRA
from gym_adapters.config.rotations import BOFT, OFT
from gym_adapters.config.scales import IA3, LNTuning
from gym_adapters.config.sparse import ExpertLoRA, LongLoRA
from gym_adapters.config.started import EVA, LoftQ, LoRAGA, OLoRA, PiSSA
from gym_adapters.config.tokens import TrainableTokens
from gym_adapters.config.virtual import PrefixTuning, PromptTuning
from gym_adapters.config.whole import Freeze, Full, LLaMAPro

__version__ = "0.1.0"
__all__ = [
    "BOFT",
    "EVA",
    "IA3",
    "OFT",
    "AdaLoRA",
    "DoRA",
    "ExpertLoRA",
    "Freeze",
    "Full",
    "LLaMAPro",
    "LNTuning",
    "LoHa",
    "LoKr",
    "LoRA",
    "LoRAGA",
    "LoftQ",
    "LongLoRA",
    "OLoRA",
    "PiSSA",
    "PrefixTuning",
    "PromptTuning",
    "RsLoRA",
    "TrainableTokens",
    "VeRA",
]
