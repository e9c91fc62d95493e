"""A real `vllm serve` and the laws of engines, on a GPU: `nox -s gpu`. Not run yet anywhere."""

from __future__ import annotations

import shutil

import pytest

from gym_testkit.distribution import Brought
from gym_testkit.laws import rollouts as laws
from gym_vllm import VLLM

LAWS = [law.check for law in laws.laws.laws]


@pytest.mark.gpu
@pytest.mark.parametrize("law", LAWS, ids=[law.__name__ for law in LAWS])
def test_it_holds_to_the_laws_of_engines(bench, law) -> None:
    if not shutil.which("vllm"):
        pytest.skip("there is no command `vllm`")

    class Engine(VLLM):
        gpu_memory_utilization: float = 0.2
        max_model_len: int | None = 128
        dtype: str = "float32"

    law(Brought("rollouts", "vllm", Engine), bench)
