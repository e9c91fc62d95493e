"""Keys of the model and of recomputation."""

from __future__ import annotations

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
    with pytest.raises(GymError, match=r"contradicts `train\.gradient_checkpointing`"):
        flat(gradient_checkpointing=True, disable_gradient_checkpointing=True)
    with pytest.raises(GymError, match="rope_scaling"):
        flat(rope_scaling="longer")
