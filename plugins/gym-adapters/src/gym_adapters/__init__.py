"""gym-adapters: which weights of a model train. These are the options; peft is imported when one is built."""

from __future__ import annotations

from gym_adapters.config.lora import EVA, AdaLoRA, DoRA, LoftQ, LoRA, LoRAGA, OLoRA, PiSSA, RsLoRA
from gym_adapters.config.whole import Freeze, Full

__version__ = "0.1.0"
__all__ = ["EVA", "AdaLoRA", "DoRA", "Freeze", "Full", "LoRA", "LoRAGA", "LoftQ", "OLoRA", "PiSSA", "RsLoRA"]
