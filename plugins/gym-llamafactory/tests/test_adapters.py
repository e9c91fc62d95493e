"""Keys that choose and fill adapters."""

from __future__ import annotations

from typing import Any

import pytest

from gym_adapters import OFT, DoRA, Freeze, LongLoRA, LoRA, PiSSA, RsLoRA
from gym_core import GymError, Recipe, RecipeError, load_recipe


def factory(**keys: Any) -> Recipe:
    """Return the recipe that a file of LLaMA-Factory means."""
    base = {"model_name_or_path": "tiny", "stage": "sft", "finetuning_type": "lora", "dataset": "identity"}
    return load_recipe(base | {"output_dir": "runs/x"} | keys)


def adapter(**keys: Any) -> Any:
    return factory(**keys).adapter


@pytest.mark.parametrize(
    ("keys", "adapter"),
    [
        ({}, LoRA()),
        ({"use_rslora": True, "lora_rank": 16, "lora_alpha": 32}, RsLoRA(rank=16, alpha=32.0)),
        ({"use_rslora": False, "use_dora": True, "lora_target": "q_proj,v_proj"}, DoRA(target_modules="q_proj,v_proj")),
        ({"pissa_init": True, "pissa_iter": -1, "pissa_convert": True}, PiSSA(iterations=-1)),
        ({"pissa_init": True, "additional_target": "embed_tokens"}, PiSSA(modules_to_save="embed_tokens")),
        (
            {"adapter_name_or_path": "a,b", "create_new_adapter": True},
            LoRA(adapter_name_or_path="a,b", create_new_adapter=True),
        ),
        ({"adapter_name_or_path": "saves/one", "use_rslora": True}, RsLoRA(adapter_name_or_path="saves/one")),
        ({"shift_attn": True}, LongLoRA(modules_to_save=())),
    ],
)
def test_llama_factorys_keys_select_the_component(keys: dict[str, Any], adapter: LoRA) -> None:
    assert factory(**keys).adapter == adapter
    left_out = {key: value for key, value in keys.items() if key != "finetuning_type"}
    assert factory(**left_out).adapter == adapter


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"use_rslora": True, "use_dora": True}, "contradicts `use_dora`"),
        ({"finetuning_type": "full", "use_dora": True}, "contradicts `finetuning_type`"),
        ({"pissa_iter": 4}, "belongs to adapter `pissa`"),
        ({"finetuning_type": "full", "create_new_adapter": True}, "belongs to adapter `lora`"),
        ({"use_dora": True, "adapter_name_or_path": "somewhere"}, "belongs to adapter `lora`"),
        ({"pissa_init": True, "pissa_iter": 0}, "at least 1 iteration"),
    ],
)
def test_keys_that_mean_nothing_together_are_errors(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(GymError, match=why):
        factory(**keys)


def test_oft() -> None:
    found = adapter(
        finetuning_type="oft", oft_block_size=16, oft_rank=0, oft_target="q_proj,v_proj", additional_target="lm_head"
    )
    assert found == OFT(block_size=16, target_modules="q_proj,v_proj", modules_to_save="lm_head")
    assert adapter(finetuning_type="oft", oft_rank=4, oft_block_size=0) == OFT(rank=4)
    with pytest.raises(RecipeError, match="set block_size or rank, not both"):
        adapter(finetuning_type="oft", oft_rank=4, oft_block_size=8)


def test_llama_pro_trains_blocks_that_were_put_in_before() -> None:
    found = adapter(finetuning_type="freeze", use_llama_pro=True, freeze_trainable_layers=8)
    assert found == Freeze(trainable_layers=8, spread=True)


def test_shifted_attention_is_longlora() -> None:
    keys = {"finetuning_type": "lora", "lora_rank": 4, "lora_target": "q_proj,v_proj", "additional_target": "norm"}
    found = adapter(shift_attn=True, **keys)
    assert found == LongLoRA(rank=4, target_modules="q_proj,v_proj", modules_to_save="norm")
    assert adapter(shift_attn=True) == LongLoRA(modules_to_save=()), "neither embeddings nor norms train there"
    assert adapter(shift_attn=False, **keys) == LoRA(rank=4, target_modules="q_proj,v_proj", modules_to_save="norm")
    with pytest.raises(RecipeError, match="contradicts `finetuning_type`"):
        adapter(shift_attn=True, finetuning_type="full")
    with pytest.raises(RecipeError, match="contradicts `shift_attn`"):
        adapter(shift_attn=True, use_dora=True)
