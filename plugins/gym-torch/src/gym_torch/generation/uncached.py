"""Logits after a whole text, without a cache: for models whose cache fails the trial of `gym_torch.generation.cache_support`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from gym_torch.batch import Piece
from gym_torch.model.hidden_states import hidden_states
from gym_torch.model.log_probs import Head
from gym_torch.packing import Layout


def next_logits(model: PreTrainedModel, head: Head, layout: Layout, texts: Sequence[Sequence[int]]) -> Tensor:
    """Return the logits `[texts, vocabulary]` of the token after each text."""
    none = np.zeros(max(map(len, texts)), dtype=np.bool_)
    pieces = [Piece("text", np.array(text, dtype=np.int32), none[: len(text)]) for text in texts]
    batch = layout.lay_out(pieces, ()).to(model.device)
    return head(hidden_states(model, batch, batch.ends))
