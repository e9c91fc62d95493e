"""The format of ExecuTorch: a program with a key-value cache, in portable operators, for devices without Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

FILE = "model.pte"


class ExecuTorchFormat(cached.GraphFormat):
    """Exports with `torch.export` and writes; ExecuTorch answers, on the processor."""

    def missing(self) -> str:
        """Return what runs it, where it is not there."""
        return "" if find_spec("executorch") else "executorch"

    def versions(self) -> Mapping[str, str]:
        """Return that of the library."""
        return {"executorch": version("executorch")} if find_spec("executorch") else {}

    def check(self, source: Source) -> None:
        """Refuse what the program would compute otherwise."""
        if self.missing():
            why = "ExecuTorch programs are written by executorch, which is not installed"
            raise GymError(why, key="export", fix="pip install executorch")
        cached.check(source, "ExecuTorch")

    def size(self, source: Source) -> int:
        """Return the bytes of weights in fp32."""
        return 4 * source.numbers

    def write(self, source: Source, into: Path) -> Mapping[str, Any]:
        """Write program, configuration and tokenizer."""
        from executorch.exir import to_edge_transform_and_lower

        model = cached.wrapped(source)
        given = [part[:1] for part in cached.example(source.config)]
        try:
            with cached.quiet(), torch.no_grad():
                shapes = _shapes(self.config.max_tokens, len(given) - 3)
                made = torch.export.export(model, tuple(given), dynamic_shapes=shapes, strict=False)
                program = to_edge_transform_and_lower(made).to_executorch()
        except Exception as error:  # torch and ExecuTorch raise many classes for what they cannot export
            why = f"ExecuTorch cannot make a program of it: {str(error).strip().splitlines()[0][:160]}"
            raise GymError(
                why, where=str(source.artifact.path), key="export", fix="export with `safetensors`"
            ) from error
        with (into / FILE).open("wb") as file:
            program.write_to_file(file)
        cached.beside(source, into)
        return {}

    def load(self, source: Source, path: Path) -> Loaded | None:
        """Load it with ExecuTorch's operators for any processor."""
        return None if self.missing() else InExecuTorch(path, source)


def _shapes(most: int, caches: int) -> tuple[Any, ...]:
    """Return which sizes differ from call to call, for one row: what a call takes, what the cache holds, and both."""
    call, held = torch.export.Dim.DYNAMIC(min=1, max=most), torch.export.Dim.DYNAMIC(min=0, max=most)
    both = torch.export.Dim.DYNAMIC(min=1, max=2 * most)
    return ({1: call}, {1: both}, {1: call}, tuple({2: held} for _ in range(caches)))


class InExecuTorch(cached.CachedLoaded):
    """A program in ExecuTorch."""

    def __init__(self, path: Path, source: Source) -> None:
        """Load it. Raises GymError where ExecuTorch does not take it."""
        from executorch.runtime import Runtime

        super().__init__(source.config, read_tokenizer(path, path))
        try:
            self.program = Runtime.get().load_program(path / FILE)  # which must outlive its method
            self.method = self.program.load_method("forward")
        except RuntimeError as error:
            raise GymError(
                f"ExecuTorch does not load it: {str(error)[:200]}", where=str(path), fix="export again"
            ) from error

    def run(self, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Return the outputs for the inputs; the program writes the next ones over its own."""
        # also without tokens
        given = [torch.from_numpy(part).clone(memory_format=torch.contiguous_format) for part in arrays]
        found = self.method.execute(given)
        return [part.numpy().copy() for part in found]
