"""Kernels of the Hub are loaded by a commit that a recipe names, and what cannot be loaded is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from pydantic import ValidationError

from gym_accel import HubAttention
from gym_core import GymError

COMMIT = "0123456789abcdef" * 2 + "01234567"
LOADED = f"""
from gym_accel import HubAttention
made = HubAttention(repository="someone/their-attention", revision="{COMMIT}").build()
import torch
from gym_torch.kernels.kernel_functions import Scores
from gym_torch.segment_spans import Spans
query = torch.randn(1, 2, 5, 8)
assert torch.equal(made.attention(query, query, query, Spans([5]), Scores(1.0)), query)
print(made.name)
"""


@pytest.mark.parametrize("wrong", [{"revision": "main"}, {"revision": COMMIT[:-1]}, {"repository": "flash-attn2"}])
def test_a_commit_is_named_in_full(wrong):
    with pytest.raises(ValidationError):
        HubAttention(**({"repository": "kernels-community/flash-attn2", "revision": COMMIT} | wrong))


@pytest.mark.skipif(find_spec("kernels") is not None, reason="it is installed")
def test_without_the_package_it_is_refused_before_anything_is_fetched():
    config = HubAttention(repository="kernels-community/flash-attn2", revision=COMMIT)
    with pytest.raises(GymError, match="kernels") as caught:
        config.check()
    assert "gym-accel[hub]" in str(caught.value) and config.missing() == config.gpu


@pytest.mark.skipif(find_spec("kernels") is None, reason="kernels is not installed")
def test_the_package_loads_it_and_what_is_not_there_is_named(tmp_path):
    """A repository in a folder, in the layout of the Hub, of code that gives back its queries."""
    build = tmp_path / "build" / "torch-cpu"
    build.mkdir(parents=True)
    (build / "__init__.py").write_text("def flash_attn_varlen_func(q, *more, **named): return q")
    (build / "metadata.json").write_text(
        '{"name": "their-attention", "id": "_theirs", "version": 1, "license": "MIT", "python-depends": [],'
        ' "backend": {"type": "cpu"}}'
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    found, lacking = (
        subprocess.run([sys.executable, "-c", LOADED], env=environment | more, capture_output=True, text=True)
        for more in ({"LOCAL_KERNELS": f"someone/their-attention={tmp_path}"}, {})
    )
    assert found.stdout.strip() == f"someone/their-attention {COMMIT[:12]}", found.stderr
    assert "someone/their-attention cannot be loaded: Cannot find a local snapshot" in lacking.stderr
