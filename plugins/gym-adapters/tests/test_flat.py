"""Keys of LLaMA-Factory that choose and fill these adapters."""

from __future__ import annotations

from typing import Any

import pytest

from gym_adapters import OFT, Freeze, LongLoRA, LoRA
from gym_core import RecipeError, load_recipe


def adapter(**keys: Any) -> Any:
    base = {"model_name_or_path": "tiny", "dataset": "some.jsonl", "stage": "sft", "output_dir": "runs/flat"}
    return load_recipe(base | keys).adapter


def test_oft() -> None:
    found = adapter(
        finetuning_type="oft", oft_block_size=16, oft_rank=0, oft_target="q_proj,v_proj", additional_target="lm_head"
    )
    assert found == OFT(block=16, modules="q_proj,v_proj", extra="lm_head")
    assert adapter(finetuning_type="oft", oft_rank=4, oft_block_size=0) == OFT(blocks=4)
    with pytest.raises(RecipeError, match="set block or blocks, not both"):
        adapter(finetuning_type="oft", oft_rank=4, oft_block_size=8)


def test_llama_pro_trains_blocks_that_were_put_in_before() -> None:
    found = adapter(finetuning_type="freeze", use_llama_pro=True, freeze_trainable_layers=8)
    assert found == Freeze(layers=8, spread=True)


def test_shifted_attention_is_longlora() -> None:
    keys = {"finetuning_type": "lora", "lora_rank": 4, "lora_target": "q_proj,v_proj", "additional_target": "norm"}
    found = adapter(shift_attn=True, **keys)
    assert found == LongLoRA(rank=4, modules="q_proj,v_proj", extra="norm")
    assert adapter(shift_attn=True) == LongLoRA()
    assert adapter(shift_attn=False, **keys) == LoRA(rank=4, modules="q_proj,v_proj", extra="norm")
    with pytest.raises(RecipeError, match="contradicts `finetuning_type`"):
        adapter(shift_attn=True, finetuning_type="full")
    with pytest.raises(RecipeError, match="contradicts `shift_attn`"):
        adapter(shift_attn=True, use_dora=True)
