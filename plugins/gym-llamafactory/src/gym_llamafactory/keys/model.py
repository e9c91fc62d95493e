"""The model that is trained."""

from __future__ import annotations

import importlib.util
from typing import Any

from gym_llamafactory.keys.convert import note
from gym_llamafactory.layout import found
from gym_llamafactory.table import Key, Keys

_OF = "transformers"
_ATTENTION = {"auto": "auto", "disabled": "eager", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}


_PACKAGES = {"fa2": "flash_attn", "fa3": "flash_attn_interface"}


def attention(value: Any) -> str:
    """Return the attention of that name; `auto`, and a word on it, where the package that brings it is not installed."""
    package = _PACKAGES.get(str(value))
    if package and importlib.util.find_spec(package) is None:
        note(f"flash_attn: {value} needs the package {package}, which is not installed; auto is used")
        return "auto"
    return _ATTENTION.get(str(value), str(value))


class ModelKeys(Keys):
    """Keys of the model."""

    keys = (
        Key("model_name_or_path", "model.path", _OF, found),
        Key("model_revision", "model.revision", _OF),
        Key("train_from_scratch", "model.init", _OF, {True: "random", False: "pretrained"}),
        Key("flash_attn", "model.attention", _OF, attention),
        Key("enable_liger_kernel", "model.kernels", _OF, {True: ["liger"], False: None}),
        Key("rope_scaling", "model.rope_scaling", _OF),
        Key("moe_aux_loss_coef", "model.router_aux_loss_coef", _OF),
        Key("resize_vocab", "model.resize_vocab", _OF),
        Key("neftune_noise_alpha", "model.neftune_noise_alpha", _OF, float),
        Key("torch_compile", "model.compile", _OF),
        Key("trust_remote_code", "model.trust_remote_code", _OF),
    )
