"""The engines of training and the laws of engines over vLLM itself: `nox -s vllm`, or `nox -s gpu` where there is its command."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gym_vllm_itself as itself
import pytest

from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.laws import rollouts as laws
from gym_vllm import VLLM
from gym_vllm.launch import Server

needs_vllm = pytest.mark.skipif(not itself.PYTHON, reason="GYM_VLLM names no Python that has vLLM")
LAWS = [law.check for law in laws.laws.laws]
SMALL: dict[str, Any] = {"gpu_memory_utilization": 0.2, "max_model_len": 512, "dtype": "float32", "startup": 500.0}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, vllm_command: None) -> Iterator[tuple[str, Bench]]:
    """The address of a server as training starts it, and the bench whose model it has."""
    bench = itself.Untied(tmp_path_factory.mktemp("laws"))
    server = Server(VLLM(**SMALL), bench.model(), bench.root / "log")
    url, key = server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(itself.KEY, key)
        yield url, bench
    server.stop()


@needs_vllm
@pytest.mark.parametrize("law", LAWS, ids=[law.__name__ for law in LAWS])
def test_it_holds_to_the_laws_of_engines(running: tuple[str, Bench], law: Any) -> None:
    class Running(VLLM):
        url: str = running[0]
        token: str = itself.KEY

    law(Brought("rollouts", "vllm", Running), running[1])


@needs_vllm
def test_so_does_the_engine_in_the_training_process(tmp_path: Path) -> None:
    script = Path(__file__).with_name("colocated_laws.py")
    command = [itself.PYTHON, str(script), sysconfig.get_path("purelib"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(f"held: {law.text}" in done.stdout for law in laws.laws.laws)


@pytest.mark.gpu
@pytest.mark.parametrize("law", LAWS, ids=[law.__name__ for law in LAWS])
def test_it_holds_to_them_on_a_gpu(bench: Bench, law: Any) -> None:
    """Not run yet anywhere."""
    if not shutil.which("vllm"):
        pytest.skip("there is no command `vllm`")

    class Engine(VLLM):
        gpu_memory_utilization: float = 0.2
        max_model_len: int | None = 128
        dtype: str = "float32"

    law(Brought("rollouts", "vllm", Engine), bench)
