"""`finetuning_type`, and the keys of LoRA, OFT and freezing."""

from __future__ import annotations

from gym_dialect import Choice, Key
from gym_dialect.convert import only, or_unset, unread
from gym_llamafactory.table import Keys

_SAVING = "lora dora rslora pissa olora lora_ga eva loftq adalora"
_LORA = f"{_SAVING} longlora"
_IN_PARTS = "lora dora rslora pissa olora lora_ga eva loftq longlora"  # of models of images, what names parts to train
_PARTS = {"freeze_vision_tower": True, "freeze_multi_modal_projector": True, "freeze_language_model": False}
_STACKED = "lora rslora pissa olora lora_ga eva longlora"  # what goes on from adapters that are there


class AdapterKeys(Keys):
    """Keys that say what is trained."""

    choices = (
        Choice(
            "finetuning_type",
            "adapter",
            {"full": "full", "freeze": "freeze", "lora": "lora", "oft": "oft"},
            default="lora",
            yields={"lora": "pissa_init shift_attn use_dora use_rslora"},
        ),
        Choice("pissa_init", "adapter", {"true": "pissa"}),
        Choice("shift_attn", "adapter", {"true": "longlora"}),
        Choice("use_dora", "adapter", {"true": "dora"}),
        Choice("use_rslora", "adapter", {"true": "rslora"}),
    )
    keys = (
        Key("lora_rank", "adapter.rank", f"{_LORA} expert_lora"),
        Key("lora_alpha", "adapter.alpha", f"{_LORA} expert_lora"),
        Key("lora_dropout", "adapter.dropout", _LORA),
        Key("lora_target", "adapter.target_modules", f"{_LORA} oft"),
        Key("additional_target", "adapter.modules_to_save", f"{_SAVING} expert_lora oft ia3 ln_tuning loha lokr vera"),
        Key("additional_target", "adapter.modules_to_save", "longlora", default=()),
        Key("adapter_name_or_path", "adapter.adapter_name_or_path", _STACKED),
        Key("create_new_adapter", "adapter.create_new_adapter", _STACKED),
        *(Key(key, f"adapter.{key}", f"full {_IN_PARTS}") for key in _PARTS),
        *(Key(key, "adapter.extra_modules", "freeze", only(usual)) for key, usual in _PARTS.items()),
        *(Key(key, "adapter.target_modules", "oft", only(usual)) for key, usual in _PARTS.items()),
        Key("pissa_iter", "adapter.iterations", "pissa"),
        Key("pissa_convert", "adapter.iterations", "pissa", unread),
        Key("oft_block_size", "adapter.block_size", "oft", or_unset),
        Key("oft_rank", "adapter.rank", "oft", or_unset),
        Key("oft_target", "adapter.target_modules", "oft"),
        Key("freeze_trainable_layers", "adapter.trainable_layers", "freeze"),
        Key("freeze_trainable_modules", "adapter.trainable_modules", "freeze"),
        Key("freeze_extra_modules", "adapter.extra_modules", "freeze"),
        Key("use_llama_pro", "adapter.spread", "freeze"),
    )
