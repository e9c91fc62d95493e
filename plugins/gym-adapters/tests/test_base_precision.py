"""The same adapter over a base in bf16, as models are published, and over the same base in fp32, as exporters open it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from adapters_bench import ADAPTERS, TOKENS
from transformers import AutoModelForCausalLM

from gym_core.discovery import entries
from gym_core.loading import load
from gym_torch.kinds import Adapter

KINDS: dict[str, type[Adapter]] = {entry.name: load(entry) for entry in entries("adapters")}
NO_ADAPTER = {"full", "freeze", "llama_pro"}  #: whose artifact is a whole model
ASKED = {name: given for name, given in ADAPTERS.items() if name not in {*NO_ADAPTER, "expert_lora"}}
ASKED["trainable_tokens"] = {"tokens": [5, 9, 2]}


@pytest.fixture(scope="module")
def narrow(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("narrow") / "base"
    AutoModelForCausalLM.from_pretrained(bench.path, dtype=torch.bfloat16).save_pretrained(path)
    return path


@pytest.mark.parametrize("name", ASKED)
def test_what_trains_and_what_is_frozen_is_the_same_over_a_base_in_bf16(
    bench: Any, narrow: Path, tmp_path: Path, name: str
) -> None:
    options = KINDS[name](**ASKED[name])
    one, other = (
        options.build(model=AutoModelForCausalLM.from_pretrained(narrow, dtype=dtype), seed=0)
        for dtype in (torch.bfloat16, torch.float32)
    )
    weights = [weight for weight in one.model.parameters() if weight.requires_grad]
    with torch.autocast("cpu", torch.bfloat16):
        one.initialize(bench.first(one.model))
        one.model(TOKENS, labels=TOKENS).loss.backward()
    torch.optim.AdamW([weight for weight in weights if weight.grad is not None], lr=0.01).step()
    one.save(tmp_path / "adapter", str(narrow))
    other.load(other.read(tmp_path / "adapter"))
    own, wide = (dict(each.model.named_parameters()) for each in (one, other))
    assert {key for key in own if own[key].requires_grad} == {key for key in wide if wide[key].requires_grad}
    assert [key for key in own if not torch.equal(own[key].float(), wide[key].float())] == []
    with torch.autocast("cpu", torch.bfloat16):
        wanted = bench.logits(one.model)
    found = bench.logits(other.model)
    assert float((found - wanted).norm() / wanted.norm()) < 0.03
