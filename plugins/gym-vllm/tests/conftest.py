"""Fixtures of the tests of vLLM's engines: the tiny model, and a stand-in that answers with it as vLLM would."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # the tests share `gym_vllm_standin`

from gym_vllm_standin import Desk, StandIn, serve

torch.set_num_threads(1)


@pytest.fixture
def desk(model_path: Path) -> Iterator[Desk]:
    """A server that answers with the tiny model as its files are."""
    with serve(Desk(StandIn(model_path))) as found:
        yield found
