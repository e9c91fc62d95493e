"""peft is imported without what it imports only because it is installed."""

import subprocess
import sys


def test_putting_an_adapter_into_a_model_does_not_import_hqq() -> None:
    code = """
import sys
from gym_adapters import LoRA
from gym_torch.lean_imports import import_models
import_models()
from torch.nn import Linear
from transformers import PretrainedConfig, PreTrainedModel
class Small(PreTrainedModel):
    def __init__(self):
        super().__init__(PretrainedConfig())
        self.q_proj = Linear(2, 2)

LoRA(rank=1, target_modules=["q_proj"]).build(model=Small(), seed=0)
print("peft" in sys.modules, "hqq" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"]
