"""The format ONNX: a graph with a key-value cache, for onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gym_core import GymError
from gym_export.format import Loaded
from gym_export.formats import cached
from gym_export.source import Source, read_tokenizer

FILE, DATA = "model.onnx", "model.onnx.data"
LIBRARIES = ("onnx", "onnxruntime")
INLINE = 2**30  #: bytes of weights beyond which they lie in a file beside the graph, which can have 2 GiB at most


class ONNXFormat(cached.GraphFormat):
    """Traces and writes; onnxruntime answers."""

    def missing(self) -> str:
        """Return what runs it, where it is not there."""
        return "" if find_spec("onnxruntime") else "onnxruntime"

    def versions(self) -> Mapping[str, str]:
        """Return those of onnx and its runtime."""
        return {name: version(name) for name in LIBRARIES if find_spec(name)}

    def check(self, source: Source) -> None:
        """Refuse what the graph would compute otherwise."""
        needed = ["onnx", *(["onnxscript"] if self.config.exporter == "dynamo" else [])]
        for name in needed:
            if find_spec(name) is None:
                raise GymError(
                    f"ONNX is written by {name}, which is not installed", key="export", fix=f"pip install {name}"
                )
        cached.check(source, "ONNX")

    def size(self, source: Source) -> int:
        """Return the bytes of weights in fp32, once in the graph and once beside it while they are moved."""
        once = 4 * source.numbers
        return 2 * once if once > INLINE else once

    def write(self, source: Source, into: Path) -> Mapping[str, Any]:
        """Write graph, configuration and tokenizer."""
        write_graph(source, into / FILE, self.config.exporter, self.config.opset)
        cached.beside(source, into)
        return {}

    def load(self, source: Source, path: Path) -> Loaded | None:
        """Load it in onnxruntime, on the processor."""
        return None if self.missing() else InOnnxRuntime(path, source)


def write_graph(source: Source, file: Path, exporter: str, opset: int) -> None:
    """Write the graph of a source. Raises GymError where torch cannot make one."""
    import onnx

    config = source.config
    model, given = cached.wrapped(source), cached.example(config)
    names, results = cached.inputs(config), cached.outputs(config)
    axes: dict[str, dict[int, str]] = {
        "input_ids": {0: "batch", 1: "length"},
        "attention_mask": {0: "batch", 1: "total"},
        "position_ids": {0: "batch", 1: "length"},
        **{name: {0: "batch", 2: "past"} for name in names[3:]},
    }
    after = {"logits": {0: "batch", 1: "length"}, **{name: {0: "batch", 2: "total"} for name in results[1:]}}
    outside = 4 * source.numbers > INLINE
    try:
        with cached.quiet(), _kept_back(), torch.no_grad():
            if exporter == "dynamo":
                dims = dict.fromkeys(("batch", "length", "total", "past"), torch.export.Dim.DYNAMIC)
                shapes = [{place: dims[dim] for place, dim in axes[name].items()} for name in names]
                torch.onnx.export(
                    model, given, str(file), dynamo=True, input_names=names, output_names=results, opset_version=opset,
                    dynamic_shapes=(*shapes[:3], tuple(shapes[3:])), external_data=outside, verbose=False,
                )  # fmt: skip
            else:
                torch.onnx.export(
                    model, given, str(file), dynamo=False, input_names=names, output_names=results, opset_version=opset,
                    dynamic_axes=axes | after, do_constant_folding=True,
                )  # fmt: skip
    except Exception as error:  # torch raises many classes for what it cannot trace
        why = f"torch cannot make a graph of it: {str(error).strip().splitlines()[0][:160]}"
        raise GymError(why, where=str(source.artifact.path), key="export", fix="try the other `exporter`") from error
    if outside and exporter != "dynamo":
        made = onnx.load(str(file))
        for left in file.parent.iterdir():
            left.unlink()
        onnx.save_model(made, str(file), save_as_external_data=True, location=DATA)


@contextmanager
def _kept_back() -> Iterator[None]:
    """Keep back the graph that torch prints, hundreds of lines, where it cannot finish it."""
    torch._C._jit_set_onnx_log_output_stream("stderr")  # from C++: to a stream that holds nothing back until later
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class InOnnxRuntime(cached.CachedLoaded):
    """A graph in onnxruntime."""

    def __init__(self, path: Path, source: Source) -> None:
        """Load it. Raises GymError where onnxruntime does not take it."""
        import onnxruntime

        super().__init__(source.config, read_tokenizer(path, path))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            self.session = onnxruntime.InferenceSession(str(path / FILE), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its classes are of a binary module
            raise GymError(
                f"onnxruntime does not load it: {str(error)[:200]}", where=str(path), fix="report it"
            ) from error
        self.names = [each.name for each in self.session.get_inputs()]

    def run(self, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Return the outputs for the inputs."""
        wanted = dict(zip(cached.inputs(self.config), arrays, strict=True))
        found: list[np.ndarray[Any, Any]] = self.session.run(None, {name: wanted[name] for name in self.names})
        return found
