"""peft is imported without what it imports only because it is installed."""

import subprocess
import sys


def test_putting_an_adapter_into_a_model_does_not_import_hqq() -> None:
    code = """
import sys
from gym_adapters import LoRA
from gym_torch.model.lean_imports import import_models
import_models()
try:
    LoRA().build(model=None)
except Exception:
    pass
print("peft" in sys.modules, "hqq" in sys.modules)
from importlib.util import find_spec
from peft.import_utils import is_hqq_available
print(is_hqq_available() == (find_spec("hqq") is not None))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False", "True"]
