"""A variant opened for answers: the base with what the user's variant adds, as any artifact is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from gym_data.tokenizer import Tokenizer
from gym_personalization.variants import Variant
from gym_torch.checkpoints.artifact import open_artifact
from gym_torch.generation.generator import complete


@dataclass(frozen=True)
class Served:
    """A user's model in memory; its base is mapped, so several share the memory of its weights."""

    variant: Variant
    model: PreTrainedModel
    tokenizer: Tokenizer

    def generate(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> str:
        """Return the answer to a prompt, or to the messages of a conversation; greedy unless `temperature` is above 0."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(each) for each in prompt]
        rows = [{"messages": messages}]
        return complete(self.model, self.tokenizer, rows, max_new_tokens, temperature=temperature, seed=seed)[0]


def open_variant(variant: Variant) -> Served:
    """Open what is served of a variant. Raises what `open_artifact` raises."""
    model = open_artifact(variant.artifact).model.requires_grad_(False).eval()
    return Served(variant, model, Tokenizer(variant.trained.path))
