"""Small random models and what tests do with them; one thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

torch.set_num_threads(1)
TOKENS = torch.tensor([[5, 3, 8, 1, 9, 2, 2, 7]])


class Bench:
    """One random model on disk, loaded anew each time it is asked for."""

    def __init__(self, kind: str, tied: bool, path: Path) -> None:
        config = AutoConfig.for_model(
            kind, vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, tie_word_embeddings=tied, initializer_range=0.3,
        )  # fmt: skip
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(path)
        self.path = path

    def base(self, **options: Any) -> PreTrainedModel:
        """Load the model."""
        return AutoModelForCausalLM.from_pretrained(self.path, **options)

    @torch.no_grad()
    def logits(self, model: torch.nn.Module) -> torch.Tensor:
        """Return the logits of a fixed text, fp32."""
        return model.eval()(TOKENS).logits.float()

    def train(self, model: PreTrainedModel, steps: int = 3) -> None:
        """Take a few large steps, so that whatever can change does."""
        optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=0.02)
        model.train()
        for _ in range(steps):
            optimizer.zero_grad()
            model(TOKENS, labels=TOKENS).loss.backward()
            optimizer.step()


@pytest.fixture(params=[("qwen3", True), ("llama", False)], ids=["qwen3-tied", "llama"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """Return a tied Qwen3, then an untied Llama."""
    return Bench(*request.param, tmp_path / "base")
