"""Whether a model has positions for its prompts and what follows them: one that looks them up has no more than its table."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from gym_core import RecipeError

_SPARE = 2  #: rows at the beginning of some tables that stand for no position


def check(model: PreTrainedModel, prompt: int, completion: int) -> None:
    """Raise RecipeError where the longest prompt and the longest completion, in tokens, have more positions than the model."""
    found = positions(model)
    if found is None or prompt + completion <= found:
        return
    fix = f"set `algorithm: {{max_new_tokens: {found - prompt}}}`, or a smaller `data: {{cutoff: ...}}`"
    raise RecipeError(
        f"the longest prompt has {prompt:,} tokens and a completion up to {completion:,}; the model has {found:,} positions",
        key="algorithm.max_new_tokens",
        fix=fix if prompt < found else f"set `data: {{cutoff: {max(1, found - completion)}}}`",
    )


def positions(model: PreTrainedModel) -> int | None:
    """Return how many positions a model has a table of; None where it computes them, as with rotary ones."""
    said: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    words = model.get_input_embeddings()
    tables = [part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding) and part is not words]
    return said if said and any(0 <= rows - said <= _SPARE for rows in tables) else None
