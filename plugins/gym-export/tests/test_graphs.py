"""Graphs with a cache, of ONNX, libtorch and OpenVINO: they answer as the model does; `nox -s openvino` has that library."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import gym_tiny
from gym_core import Artifact, GymError
from gym_export import ONNX, OpenVINO, TorchScript
from gym_export.formats.cached import Cached

TINY = Path(gym_tiny.__file__).parent / "model"
GRAPHS = {
    "onnx": ONNX(),
    "onnx dynamo": ONNX(exporter="dynamo"),
    "torchscript": TorchScript(),
    "openvino": OpenVINO(),
    "openvino dynamo": OpenVINO(exporter="dynamo"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "onnx dynamo")) for name in GRAPHS]
)
def test_a_graph_with_a_cache_answers_and_writes_the_same(tmp_path: Path, name: str) -> None:
    if "openvino" in name and find_spec("openvino") is None:
        pytest.skip("openvino is not installed: nox -s openvino")
    written = GRAPHS[name].build().export(Artifact(TINY), tmp_path / "out")
    told = json.loads((written / "certificate.json").read_text())
    assert told["status"] == "verified" and told["relative_difference"] < 1e-5
    assert told["greedy"]["same"] == told["greedy"]["tokens"] > 0 and {"question", "talk"} <= told["prompts"].keys()


def test_a_graph_that_cannot_be_made_is_refused_and_prints_nothing(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Torch prints what it has of the graph, on stdout even, where scripts read what a command says."""

    def forward(self: Any, input_ids: Any, *others: Any) -> tuple[Any, ...]:
        return (torch.linalg.eigvals(input_ids.float() @ input_ids.float().T), *others[2:])

    monkeypatch.setattr(Cached, "forward", forward)
    with pytest.raises(GymError, match="torch cannot make a graph of it"):
        ONNX().build().export(Artifact(model_path), tmp_path / "out")
    assert "graph(" not in "".join(capfd.readouterr())
