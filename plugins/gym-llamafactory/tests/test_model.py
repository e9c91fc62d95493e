"""Keys of the model and of recomputation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_core import GymError, Recipe, load_recipe
from gym_torch.config import Transformers


def flat(**keys: Any) -> Recipe:
    base = {"model_name_or_path": "tiny", "stage": "sft", "finetuning_type": "full", "dataset": "identity"}
    return load_recipe(base | {"output_dir": "runs/x"} | keys)


def test_flat_keys_of_the_model_and_of_recomputation() -> None:
    model = flat(rope_scaling="yarn", neftune_noise_alpha=5).model
    assert isinstance(model, Transformers) and (model.rope_scaling, model.neftune_noise_alpha) == ("yarn", 5.0)
    assert flat(moe_aux_loss_coef=0.02).model == Transformers(path="tiny", router_aux_loss_coef=0.02)
    assert flat(disable_gradient_checkpointing=False).train.gradient_checkpointing is True
    assert flat(disable_gradient_checkpointing=True).train.gradient_checkpointing is False
    assert flat(gradient_checkpointing=True).train.gradient_checkpointing is True
    with pytest.raises(GymError, match=r"disable_gradient_checkpointing: contradicts `gradient_checkpointing`"):
        flat(gradient_checkpointing=True, disable_gradient_checkpointing=True)
    with pytest.raises(GymError, match="rope_scaling"):
        flat(rope_scaling="longer")


def test_tokens_are_added_as_a_list_or_by_a_file_that_describes_them(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text("<svg>: begins a drawing\n<end>: ends it\n")
    for keys, wanted in (
        ({"add_tokens": "a b, c,"}, {"add_tokens": ["a b", "c"]}),
        ({"add_special_tokens": "<x>,<y>"}, {"add_special_tokens": ["<x>", "<y>"]}),
        ({"new_special_tokens_config": str(file)}, {"add_special_tokens": ["<svg>", "<end>"]}),
        (
            {"new_special_tokens_config": str(file), "add_special_tokens": "<x>"},
            {"add_special_tokens": ["<svg>", "<end>"]},
        ),
    ):
        recipe: Any = flat(**keys, init_special_tokens="noise_init")
        assert recipe.model == Transformers(path="tiny", **wanted)
        assert recipe.data.split_special_tokens is ("add_tokens" in keys), "rows spell out those that are special"
        assert flat(**keys, split_special_tokens=True).data.split_special_tokens is True  # type: ignore[union-attr]
    file.write_text("just text")
    for wrong in (tmp_path / "nowhere.yaml", file):
        with pytest.raises(GymError, match=r"new_special_tokens_config(.|\n)*(No such file|holds no such lines)"):
            flat(new_special_tokens_config=str(wrong))
    with pytest.raises(GymError, match="init_special_tokens"):
        flat(add_special_tokens="<x>", init_special_tokens="desc_init")


def test_whether_layers_are_computed_again_and_how_are_keys_of_their_own() -> None:
    """LLaMA-Factory looks at `use_unsloth_gc` where they are."""
    for beside in ({}, {"gradient_checkpointing": True}, {"disable_gradient_checkpointing": False}):
        assert flat(use_unsloth_gc=True, **beside).train.gradient_checkpointing == "offload"
        assert (
            flat(use_unsloth_gc=False, **beside).train.gradient_checkpointing
            == flat(**beside).train.gradient_checkpointing
        )
    assert flat(use_unsloth_gc=True, disable_gradient_checkpointing=True).train.gradient_checkpointing is False
    for key in ("use_unsloth_gc", "disable_gradient_checkpointing"):
        with pytest.raises(GymError, match=key):
            flat(**{key: "sometimes"})


def quantized(**keys: Any) -> dict[str, Any] | None:
    model = flat(finetuning_type="lora", **keys).model
    assert isinstance(model, Transformers)
    made = model.quantization
    omitted = {"modules_to_not_convert", "convert_vision_tower"}
    return {"name": type(made).__name__, **made.model_dump(exclude=omitted)} if made else None


def test_keys_of_quantization_choose_a_quantizer_together() -> None:
    nested = {"blocksize": 64, "double_quant": True, "quant_type": "nf4"}
    assert quantized() is None
    assert quantized(quantization_bit=4) == {"name": "Bnb4bit", **nested}
    plain = quantized(quantization_bit=4, quantization_method="bnb", double_quantization=False, quantization_type="fp4")
    assert plain == {"name": "Bnb4bit", **nested, "double_quant": False, "quant_type": "fp4"}
    assert quantized(quantization_bit=8)["name"] == "Bnb8bit"  # type: ignore[index]
    assert quantized(quantization_bit=3, quantization_method="hqq") == {"name": "HQQ", "bits": 3, "group_size": 64}
    assert quantized(quantization_bit=8, quantization_method="eetq") == {"name": "EETQ"}
    assert quantized(quantization_bit=2, quantization_method="quanto") == {"name": "Quanto", "weights": "int2"}
    model = flat(finetuning_type="lora", stage="dpo", ref_model="tiny", ref_model_quantization_bit=8).model
    assert type(model.ref_model_quantization).__name__ == "Bnb8bit"  # type: ignore[union-attr]
    alone = flat(finetuning_type="lora", stage="dpo", ref_model_quantization_bit=8)
    with pytest.raises(GymError, match="this recipe names none"):
        alone.check()
    rewarded: Any = flat(finetuning_type="lora", stage="ppo", reward_model="tiny", reward_model_quantization_bit=4)
    assert type(rewarded.algorithm.rewards[0].quantization).__name__ == "Bnb4bit"


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"quantization_bit": 3}, "bnb has 4, 8 bits, not 3; `quantization_method: hqq` can"),
        ({"quantization_bit": 7}, "bnb has 4, 8 bits, not 7"),
        ({"quantization_bit": 4, "quantization_method": "eetq"}, "eetq has 8 bits, not 4"),
        ({"quantization_bit": 4, "quantization_method": "gptq"}, "quantized already"),
        ({"quantization_bit": 4, "quantization_method": "none"}, "no method `none`"),
        ({"quantization_type": "nf4"}, "says nothing without `quantization_bit`"),
    ],
)
def test_bits_that_a_method_does_not_have_are_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(GymError, match=why):
        flat(finetuning_type="lora", **keys)
