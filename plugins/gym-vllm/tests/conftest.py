"""Fixtures of the tests of vLLM's engines: the tiny model, and a stand-in that answers with it as vLLM would."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # the tests share modules of their own

from gym_vllm_itself import COMMAND, PYTHON
from gym_vllm_standin import Desk, StandIn, serve

torch.set_num_threads(1)


@pytest.fixture
def desk(model_path: Path) -> Iterator[Desk]:
    """A server that answers with the tiny model as its files are."""
    with serve(Desk(StandIn(model_path))) as found:
        yield found


@pytest.fixture(scope="module")
def vllm_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The command `vllm`, of the Python that `GYM_VLLM` names."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "vllm").write_text(COMMAND.format(python=PYTHON))
    (folder / "vllm").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        yield
