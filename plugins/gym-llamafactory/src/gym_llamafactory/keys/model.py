"""The model that is trained."""

from __future__ import annotations

from gym_llamafactory.table import Key, Keys

_OF = "transformers"
_ATTENTION = {"auto": "auto", "disabled": "eager", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}


class ModelKeys(Keys):
    """Keys of the model."""

    keys = (
        Key("model_name_or_path", "model.path", _OF),
        Key("model_revision", "model.revision", _OF),
        Key("train_from_scratch", "model.init", _OF, {True: "random", False: "pretrained"}),
        Key("flash_attn", "model.attention", _OF, _ATTENTION),
        Key("rope_scaling", "model.rope_scaling", _OF),
        Key("moe_aux_loss_coef", "model.router_aux_loss_coef", _OF),
        Key("resize_vocab", "model.resize_vocab", _OF),
        Key("neftune_noise_alpha", "model.neftune_noise_alpha", _OF, float),
        Key("trust_remote_code", "model.trust_remote_code", _OF),
    )
