"""gym-adapters: which weights of a model train. These are the options; peft is imported when one is built."""

from __future__ import annotations

from gym_adapters.config.adalora import AdaLoRA
from gym_adapters.config.boft import BOFT
from gym_adapters.config.dora import DoRA
from gym_adapters.config.eva import EVA
from gym_adapters.config.expert_lora import ExpertLoRA
from gym_adapters.config.freeze import Freeze
from gym_adapters.config.full import Full
from gym_adapters.config.ia3 import IA3
from gym_adapters.config.llama_pro import LLaMAPro
from gym_adapters.config.ln_tuning import LNTuning
from gym_adapters.config.loftq import LoftQ
from gym_adapters.config.loha import LoHa
from gym_adapters.config.lokr import LoKr
from gym_adapters.config.longlora import LongLoRA
from gym_adapters.config.lora import LoRA
from gym_adapters.config.lora_ga import LoRAGA
from gym_adapters.config.oft import OFT
from gym_adapters.config.olora import OLoRA
from gym_adapters.config.pissa import PiSSA
from gym_adapters.config.prefix_tuning import PrefixTuning
from gym_adapters.config.prompt_tuning import PromptTuning
from gym_adapters.config.rslora import RsLoRA
from gym_adapters.config.trainable_tokens import TrainableTokens
from gym_adapters.config.vera import VeRA

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
