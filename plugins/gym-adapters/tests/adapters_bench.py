"""Small random models and what tests do with them; one thread."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_torch.batch import Piece, padded
from gym_torch.kinds import Adapter
from gym_torch.model.log_probs import head_of, label_log_probs
from gym_torch.trained_part import FirstStepBatch

torch.set_num_threads(1)
TOKENS = torch.tensor([[5, 3, 8, 1, 9, 2, 2, 7]])
ADAPTERS: dict[str, dict[str, Any]] = {  #: every one, small
    "full": {},
    "freeze": {"trainable_layers": 1},
    "lora": {"rank": 4, "dropout": 0.1},
    "rslora": {"rank": 4},
    "dora": {"rank": 4},
    "pissa": {"rank": 4},
    "olora": {"rank": 4},
    "lora_ga": {"rank": 4},
    "eva": {"rank": 4},
    "loftq": {"rank": 4},
    "adalora": {"rank": 4, "target_rank": 2},
    "loha": {"rank": 2},
    "lokr": {"rank": 2},
    "vera": {"rank": 8, "dropout": 0.2},
    "oft": {"block_size": 8},
    "boft": {"block_size": 4},
    "ia3": {},
    "ln_tuning": {},
    "trainable_tokens": {"tokens": [97, 98, "<|im_end|>"]},
    "prompt_tuning": {"num_virtual_tokens": 4},
    "prefix_tuning": {"num_virtual_tokens": 4},
    "llama_pro": {"blocks": 2},
    "longlora": {"rank": 2, "dropout": 0.1},
    "expert_lora": {"rank": 2, "target_modules": "q_proj"},
}


@cache
def loaded(path: Path, **options: Any) -> PreTrainedModel:
    """Return the model of a directory, which is loaded once."""
    return AutoModelForCausalLM.from_pretrained(path, **options)


class Bench:
    """One random model, in a directory of `folder` that all tests share and none writes to."""

    tokens = TOKENS

    def __init__(self, kind: str, tied: bool, folder: Path) -> None:
        self.path = folder / f"{kind}-tied" if tied else folder / kind
        if not self.path.exists():
            config = AutoConfig.for_model(
                kind, vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
                num_key_value_heads=1, head_dim=8, tie_word_embeddings=tied, initializer_range=0.3,
            )  # fmt: skip
            torch.manual_seed(0)
            AutoModelForCausalLM.from_config(config).save_pretrained(self.path)

    def base(self, **options: Any) -> PreTrainedModel:
        """Return the model as it is on disk, a copy for each who asks."""
        return deepcopy(loaded(self.path, **options))

    @torch.no_grad()
    def logits(self, model: torch.nn.Module) -> torch.Tensor:
        """Return the logits of a fixed text, fp32."""
        return model.eval()(TOKENS).logits.float()

    def first(self, model: PreTrainedModel, texts: torch.Tensor = TOKENS) -> list[FirstStepBatch]:
        """Return a first step of one batch, for adapters that look at it."""
        rows = [Piece(str(number), row.int().numpy(), (row >= 0).numpy()) for number, row in enumerate(texts)]
        batch = padded(rows)
        return [FirstStepBatch(batch, lambda: model(batch.tokens, labels=batch.tokens).loss)]

    def begun(self, config: Adapter, seed: int = 0, **options: Any) -> Any:
        """Return an adapted base that may train: with its first values."""
        adapted = config.build(model=self.base(**options), seed=seed)
        adapted.initialize(self.first(adapted.model))
        return adapted

    def train(self, model: PreTrainedModel, steps: int = 3) -> None:
        """Take a few large steps, so that whatever can change does."""
        optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=0.02)
        model.train()
        for _ in range(steps):
            optimizer.zero_grad()
            model(TOKENS, labels=TOKENS).loss.backward()
            optimizer.step()

    def check_head(self, model: PreTrainedModel) -> None:
        """Hold the head in chunks to the model's own: the same log-probabilities, and gradients for all that trains."""
        whole = model(TOKENS).logits[0, :-1].log_softmax(1).gather(1, TOKENS[0, 1:, None]).squeeze(1)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        expected = torch.autograd.grad(whole.sum(), weights, allow_unused=True)
        hidden = model.base_model(TOKENS).last_hidden_state[0, :-1]
        chunked = label_log_probs(hidden, head_of(model), TOKENS[0, 1:], chunk=3)
        found = torch.autograd.grad(chunked.sum(), weights, allow_unused=True)
        assert torch.allclose(chunked, whole, atol=1e-5)
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.allclose(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()) + 1e-6)
