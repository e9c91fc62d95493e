"""Whether a model has positions for its prompts and what follows them: one that looks them up has no more than its table."""

from __future__ import annotations

from transformers import PreTrainedModel

from gym_core import RecipeError
from gym_torch.model import positions


def check(model: PreTrainedModel, prompt: int, completion: int) -> None:
    """Raise RecipeError where the longest prompt and the longest completion, in tokens, have more positions than the model."""
    found = positions.table(model)
    if found is None or prompt + completion <= found:
        return
    fix = f"set `algorithm: {{max_new_tokens: {found - prompt}}}`, or a smaller `data: {{cutoff: ...}}`"
    raise RecipeError(
        f"the longest prompt has {prompt:,} tokens and a completion up to {completion:,}; the model has {found:,} positions",
        key="algorithm.max_new_tokens",
        fix=fix if prompt < found else f"set `data: {{cutoff: {max(1, found - completion)}}}`",
    )
