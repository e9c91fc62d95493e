"""Models of transformers are imported without libraries that Gym does not use, which are there for all others."""

import subprocess
import sys

import pytest

from gym_torch.lean_imports import UNUSED


def run(code: str) -> str:
    """Return what a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_nothing_is_loaded_that_no_model_needs_and_all_is_found_afterwards() -> None:
    printed = run(f"""
import sys
from importlib.util import find_spec
from gym_torch.lean_imports import import_models
import_models()
print("transformers.modeling_utils" in sys.modules, [name for name in {UNUSED!r} if name in sys.modules])
from transformers.utils import is_hqq_available, is_scipy_available, is_torchao_available
answers = is_hqq_available(), is_scipy_available(), is_torchao_available()
print(answers == tuple(find_spec(name) is not None for name in {UNUSED!r}), True in answers)
""")
    assert printed.split() == ["True", "[]", "True", "True"]


def test_what_needs_one_of_them_on_import_finds_it() -> None:
    pytest.importorskip("scipy")
    printed = run("""
import builtins, sys
real = builtins.__import__
def needy(name, *rest, **named):
    if name.endswith("modeling_utils"):
        real("scipy")
    return real(name, *rest, **named)
builtins.__import__ = needy
from gym_torch.lean_imports import import_models
import_models()
print("scipy" in sys.modules)
import transformers.modeling_utils
print("scipy" in sys.modules)
""")
    assert printed.split() == ["False", "True"]
