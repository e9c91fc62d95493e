"""The format TorchScript: a traced program with a key-value cache, which libtorch runs without Python."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gym_core import GymError
from gym_export.format import Loaded
from gym_export.formats import cached
from gym_export.source import Source, read_tokenizer

FILE = "model.pt"


class TorchScriptFormat(cached.GraphFormat):
    """Traces and writes; `torch.jit` answers."""

    def check(self, source: Source) -> None:
        """Refuse what the trace would compute otherwise."""
        cached.check(source, "TorchScript")

    def size(self, source: Source) -> int:
        """Return the bytes of weights in fp32."""
        return 4 * source.numbers

    def write(self, source: Source, into: Path) -> Mapping[str, Any]:
        """Write program, configuration and tokenizer."""
        try:
            with cached.quiet(), torch.no_grad():
                made = torch.jit.trace(cached.wrapped(source), cached.example(source.config), check_trace=False)
            held = io.BytesIO()  # libtorch ends the process where the disk does not take a file
            torch.jit.save(made, held)
        except (RuntimeError, TypeError, ValueError) as error:
            why = f"torch cannot trace it: {str(error).strip().splitlines()[0][:160]}"
            raise GymError(
                why, where=str(source.artifact.path), key="export", fix="export with `safetensors`"
            ) from error
        with (into / FILE).open("wb") as file:
            file.write(held.getbuffer())
        cached.beside(source, into)
        return {}

    def load(self, source: Source, path: Path) -> Loaded:
        """Load it without transformers."""
        return InTorchScript(path, source)


class InTorchScript(cached.CachedLoaded):
    """A traced program."""

    def __init__(self, path: Path, source: Source) -> None:
        """Load it. Raises GymError where it is damaged."""
        super().__init__(source.config, read_tokenizer(path, path))
        try:
            self.program = torch.jit.load(str(path / FILE), map_location="cpu")
        except RuntimeError as error:
            raise GymError(
                f"libtorch does not load it: {str(error)[:200]}", where=str(path), fix="export again"
            ) from error

    def run(self, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Return the outputs for the inputs."""
        with torch.no_grad(), cached.quiet():
            found = self.program(*map(torch.from_numpy, arrays))
        return [part.numpy() for part in found]
