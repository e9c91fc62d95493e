"""The format of OpenVINO: the graph of `gym_export.formats.onnx`, converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from gym_core import GymError
from gym_export.format import Loaded
from gym_export.formats import cached
from gym_export.formats.onnx import FILE as GRAPH
from gym_export.formats.onnx import write_graph
from gym_export.source import Source, read_tokenizer

FILE = "openvino_model.xml"
OPSET = 18


class OpenVINOFormat(cached.GraphFormat):
    """Converts an ONNX graph; OpenVINO answers, on the processor."""

    def missing(self) -> str:
        """Return what runs it, where it is not there."""
        return "" if find_spec("openvino") else "openvino"

    def versions(self) -> Mapping[str, str]:
        """Return that of the library."""
        return {"openvino": version("openvino")} if find_spec("openvino") else {}

    def check(self, source: Source) -> None:
        """Refuse what the graph would compute otherwise."""
        for name in ("onnx", "openvino", *(["onnxscript"] if self.config.exporter == "dynamo" else [])):
            if find_spec(name) is None:
                why = f"OpenVINO models are written by {name}, which is not installed"
                raise GymError(why, key="export", fix=f"pip install {name}")
        cached.check(source, "OpenVINO")

    def size(self, source: Source) -> int:
        """Return the bytes of the graph in fp32, with what is made of it."""
        return (4 + {"fp32": 4, "fp16": 2}[self.config.dtype]) * source.numbers

    def write(self, source: Source, into: Path) -> Mapping[str, Any]:
        """Write model, configuration and tokenizer."""
        import openvino

        with TemporaryDirectory(dir=into, prefix=".graph-") as folder:  # which goes where `into` is cleared away
            write_graph(source, Path(folder) / GRAPH, self.config.exporter, OPSET)
            made = openvino.convert_model(str(Path(folder) / GRAPH))
            openvino.save_model(made, str(into / FILE), compress_to_fp16=self.config.dtype == "fp16")
            del made
        cached.beside(source, into)
        return {}

    def load(self, source: Source, path: Path) -> Loaded | None:
        """Load it on the processor, computing in fp32."""
        return None if self.missing() else InOpenVINO(path, source)


class InOpenVINO(cached.CachedLoaded):
    """A model in OpenVINO."""

    def __init__(self, path: Path, source: Source) -> None:
        """Load it. Raises GymError where OpenVINO does not take it."""
        import openvino

        super().__init__(source.config, read_tokenizer(path, path))
        try:
            self.model = openvino.Core().compile_model(
                str(path / FILE), "CPU", {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
            )
        except RuntimeError as error:
            raise GymError(
                f"OpenVINO does not load it: {str(error)[:200]}", where=str(path), fix="report it"
            ) from error

    def run(self, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Return the outputs for the inputs."""
        wanted = dict(zip(cached.inputs(self.config), arrays, strict=True))
        given = {name: wanted[name] for port in self.model.inputs for name in port.names if name in wanted}
        found = self.model(given)
        return [np.array(found[port]) for port in self.model.outputs]
