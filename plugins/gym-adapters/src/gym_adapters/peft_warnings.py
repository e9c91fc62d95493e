"""Warnings of peft that say nothing a user could act on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Silence peft on tied embeddings, which `merged` takes care of, norms, which it merges, its finds and its old names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Model (with|has) `tie_word_embeddings=True`")
        warnings.filterwarnings("ignore", message="Input and output embeddings are no longer tied")
        warnings.filterwarnings("ignore", message="Unsupported layer type .*Norm")
        warnings.filterwarnings("ignore", message="Adapter 'default': .* LoRA tensor")
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False")
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        yield
