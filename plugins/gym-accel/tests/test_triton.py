"""Kernels in Triton, ours and Liger's, interpreted, and compiled on a GPU: `triton_definitions.py` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import gym_accel
from gym_accel import Liger, OnTriton, Triton
from gym_core import GymError, load_recipe

RECIPE = {"data": "rows.jsonl", "algorithm": "sft"}


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton for this system")
@pytest.mark.parametrize("environment", [{"TRITON_INTERPRET": "1"}, pytest.param({}, marks=pytest.mark.gpu)])
def test_every_kernel_is_that_of_its_definition(environment):
    file = Path(__file__).with_name("triton_definitions.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-4000:]


def test_a_recipe_names_libraries_in_its_order():
    recipe = RECIPE | {"model": {"path": "tiny", "kernels": ["liger", "triton"]}}
    assert [type(each) for each in load_recipe(recipe).model.kernels] == [Liger, Triton]


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    class Absent(OnTriton):
        """Kernels of a package that is not installed."""

        package = "gym_no_such_package"
        install = "pip install 'gym-accel[absent]'"

    with pytest.raises(GymError, match="gym_no_such_package") as caught:
        Absent().check()
    assert "gym-accel[absent]" in str(caught.value)


def test_without_a_gpu_a_run_goes_on_without_them(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert Triton().missing() == "a GPU"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert Triton().missing() == ""
    assert gym_accel.__version__
