"""Prompt tuning (arXiv:2104.08691): embeddings of virtual tokens that stand before every text."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import PeftConfig, PromptTuningConfig
from torch import Tensor
from transformers import AutoTokenizer

from gym_adapters.config.prompt_tuning import PromptTuning
from gym_adapters.virtual_tokens import STATE, Pair, VirtualTokenAdapter
from gym_core import GymError


class PromptTuningAdapter(VirtualTokenAdapter[PromptTuning]):
    """Embeddings of virtual tokens (arXiv:2104.08691, section 2), which begin as those of real ones (figure 3b there)."""

    _known: tuple[object, list[Pair]] | None = None  #: keys and values, and the state of the weights they are of

    def start(self) -> Tensor:
        """Return the embeddings of the tokens of a text, or of some that are drawn, `[tokens, dim]`."""
        text, count = self.config.init_text, self.config.num_virtual_tokens
        if text is None:
            return self._drawn()
        tokenizer = AutoTokenizer.from_pretrained(Path(self.model.name_or_path), local_files_only=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if not ids:
            raise GymError("the text has no tokens", key="adapter.init_text", fix="write one, or leave it out")
        embedding = self.model.get_input_embeddings()
        return embedding(torch.tensor((ids * count)[:count], device=embedding.weight.device))

    def keys_and_values(self) -> list[Pair]:
        """Return what the model computes for the virtual tokens by themselves, without gradients once for many passes."""
        weight = self.model.get_parameter(STATE)
        if torch.is_grad_enabled():
            self._known = None  # a step follows, of which weights that lie in shards show no trace
            return self._compute(weight)
        state = (weight.data_ptr(), weight._version, torch.is_autocast_enabled(weight.device.type))
        if self._known is None or self._known[0] != state:
            self._known = state, self._compute(weight)
        return self._known[1]

    def peft_config(self) -> PeftConfig:
        """Return peft's options of the same adapter."""
        config = self.model.config.get_text_config()
        return PromptTuningConfig(
            token_dim=config.hidden_size,
            num_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            **self._shape(),
        )
