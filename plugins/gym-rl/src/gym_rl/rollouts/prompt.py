"""Prompts as a round of rollouts asks them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from gym_torch.batch import Example


class Prompt(Example, Protocol):
    """A prompt as gym-data prepares it."""

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """Roles and contents."""
        ...

    @property
    def row(self) -> Mapping[str, Any]:
        """All columns."""
        ...

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Functions that it offers."""
        ...

    @property
    def input_tokens(self) -> Collection[int]:
        """Tokens that stand for parts of what it has beside them, such as images."""
        ...

    @property
    def values(self) -> Mapping[str, Any]:
        """What the chat template was handed besides."""
        ...
