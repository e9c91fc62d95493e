"""gym-quant: weights in fewer bits. These are the options; torch is imported when one is built."""

from __future__ import annotations

from gym_quant.config.awq import AWQ
from gym_quant.config.bnb_4bit import Bnb4bit
from gym_quant.config.bnb_8bit import Bnb8bit
from gym_quant.config.eetq import EETQ
from gym_quant.config.encoded import Encoded
from gym_quant.config.fp8 import FP8
from gym_quant.config.gptq import GPTQ
from gym_quant.config.hqq import HQQ
from gym_quant.config.mixed import Mixed
from gym_quant.config.quanto import Quanto
from gym_quant.config.rtn import RTN
from gym_quant.config.torchao import TorchAO

__version__ = "0.1.0"
__all__ = ["AWQ", "EETQ", "FP8", "GPTQ", "HQQ", "RTN", "Bnb4bit", "Bnb8bit", "Encoded", "Mixed", "Quanto", "TorchAO"]
