"""The optimizer: transformers' `optim` with its arguments, and LLaMA-Factory's `use_galore` and the like."""

from __future__ import annotations

from typing import Any

from gym_dialect import Choice, Key
from gym_dialect.convert import if_it_says, only, unread
from gym_llamafactory.table import Keys

_AS_ADAM = (
    "adamw adamw_8bit paged_adamw_8bit adam_mini badam fira lisa lora_plus lora_pro q_galore schedule_free_adamw soap"
)
_APOLLO = "apollo apollo_mini"
#: Values of `optim` that are not here, by what to set in their place.
_INSTEAD = {
    "optim: adamw_torch": "adamw_torch_xla adamw_torch_npu_fused adamw_apex_fused adamw_anyprecision grokadamw stable_adamw "
    "ademamix paged_ademamix_32bit rmsprop rmsprop_bnb rmsprop_bnb_32bit",
    "optim: adafactor": "adagrad",
    "optim: adamw_8bit": "adamw_torch_4bit ademamix_8bit rmsprop_bnb_8bit",
    "optim: paged_adamw_8bit": "paged_adamw_32bit paged_ademamix_8bit",
    "optim: galore_adamw": "galore_adafactor galore_adafactor_layerwise",
    "optim: galore_adamw, or the section optimizer: q_galore": "galore_adamw_8bit galore_adamw_8bit_layerwise",
    "optim: lion_32bit": "lion_8bit paged_lion_8bit paged_lion_32bit",
    "optim: schedule_free_adamw": "schedule_free_radam schedule_free_sgd",
}
_NARROWER = "loraplus_lr_ratio use_adam_mini use_apollo use_badam use_galore use_muon"


def _targets(value: Any) -> Any:
    """Take names; transformers would also take a pattern."""
    if not isinstance(value, str):
        return value
    if value.replace("_", "-") == "all-linear":
        return "all"
    raise ValueError("a pattern is not taken here: list names, such as [q_proj, v_proj], or say `all-linear`")


def _whole_layers(mode: Any) -> None:
    """Take the mode of BAdam that is here."""
    if mode != "layer":
        raise ValueError(f"only whole layers take turns here, not `{mode}`: leave it out, or set `use_badam: false`")


class OptimizerKeys(Keys):
    """Keys of the optimizer."""

    choices = (
        Choice(
            "optim",
            "optimizer",
            {
                "adafactor": "adafactor",
                "adalomo": "adalomo",
                "adamw_8bit": "adamw_8bit",
                "adamw_bnb_8bit": "adamw_8bit",
                "adamw_torch": "adamw",
                "adamw_torch_8bit": "adamw_8bit",
                "adamw_torch_fused": "adamw",
                "apollo_adamw": "apollo",
                "apollo_adamw_layerwise": "apollo",
                "galore_adamw": "galore",
                "galore_adamw_layerwise": "galore",
                "lion_32bit": "lion",
                "lomo": "lomo",
                "paged_adamw_8bit": "paged_adamw_8bit",
                "schedule_free_adamw": "schedule_free_adamw",
                "sgd": "sgd",
            },
            default="adamw",
            yields={"adamw_torch": _NARROWER, "adamw_torch_fused": _NARROWER},
            refused={value: instead for instead, values in _INSTEAD.items() for value in values.split()},
        ),
        Choice("loraplus_lr_ratio", "optimizer", {"*": "lora_plus"}),
        Choice("use_adam_mini", "optimizer", {"true": "adam_mini"}),
        Choice("use_apollo", "optimizer", {"true": "apollo"}),
        Choice("use_badam", "optimizer", {"true": "badam"}),
        Choice("use_galore", "optimizer", {"true": "galore"}),
        Choice("use_muon", "optimizer", {"true": "muon"}),
    )
    keys = (
        Key("adam_beta1", "optimizer.beta1", f"{_AS_ADAM} {_APOLLO} galore muon lion"),
        Key("adam_beta2", "optimizer.beta2", f"{_AS_ADAM} {_APOLLO} galore"),
        Key("adam_beta2", "optimizer.beta2", "muon lion", default=0.999),
        Key("adam_epsilon", "optimizer.epsilon", f"{_AS_ADAM} galore muon", float),
        Key("adam_epsilon", "optimizer.epsilon", "galore", float, 1e-6, "optim"),
        Key("adam_epsilon", "optimizer.epsilon", _APOLLO, float, 1e-8),
        Key("weight_decay", "optimizer.weight_decay", f"{_AS_ADAM} {_APOLLO} galore lion adafactor adalomo lomo sgd"),
        Key("weight_decay", "optimizer.weight_decay", "muon", default=0.0),
        # GaLore, by LLaMA-Factory's keys and by transformers'
        Key("galore_rank", "optimizer.rank", "galore", None, 16, "use_galore"),
        Key("galore_update_interval", "optimizer.update_proj_gap", "galore", chosen_by="use_galore"),
        Key("galore_scale", "optimizer.scale", "galore", None, 2.0, "use_galore"),
        Key("galore_proj_type", "optimizer.proj_type", "galore", chosen_by="use_galore"),
        Key("galore_target", "optimizer.target_modules", "galore", chosen_by="use_galore"),
        Key("galore_layerwise", "optimizer.in_backward", "galore", chosen_by="use_galore"),
        Key("optim", "optimizer.in_backward", "galore", if_it_says("galore_adamw_layerwise"), None, "optim"),
        Key("optim_args.proj_type", "optimizer.proj_type", "galore", chosen_by="optim"),
        # APOLLO
        Key("apollo_rank", "optimizer.rank", "apollo", None, 16, "use_apollo"),
        Key("apollo_update_interval", "optimizer.update_proj_gap", _APOLLO, chosen_by="use_apollo"),
        Key("apollo_scale", "optimizer.scale", "apollo", None, 32.0, "use_apollo"),
        Key("apollo_scale_type", "optimizer.scale_type", "apollo", chosen_by="use_apollo"),
        Key("apollo_proj", "optimizer.scale_type", "apollo", only("random"), chosen_by="use_apollo"),
        Key("apollo_proj_type", "optimizer.scale_type", "apollo", only("std"), chosen_by="use_apollo"),
        # the limit is on a ratio of norms
        Key("apollo_scale_front", "optimizer.scale_type", "apollo", {True: None, False: None}, None, "use_apollo"),
        Key("apollo_target", "optimizer.target_modules", _APOLLO, chosen_by="use_apollo"),
        Key("apollo_layerwise", "optimizer.in_backward", _APOLLO, chosen_by="use_apollo"),
        Key("optim", "optimizer.in_backward", _APOLLO, if_it_says("apollo_adamw_layerwise"), None, "optim"),
        Key("optim_args.scale_type", "optimizer.scale_type", "apollo", chosen_by="optim"),
        Key("optim_args.proj", "optimizer.scale_type", "apollo", only("random"), chosen_by="optim"),
        Key("optim_args.proj_type", "optimizer.scale_type", "apollo", only("std"), chosen_by="optim"),
        Key("optim_args.rank", "optimizer.rank", "galore", int, None, "optim"),
        Key("optim_args.rank", "optimizer.rank", "apollo", int, 128, "optim"),
        Key("optim_args.update_proj_gap", "optimizer.update_proj_gap", f"galore {_APOLLO}", int, None, "optim"),
        Key("optim_args.scale", "optimizer.scale", "galore apollo", float, None, "optim"),
        Key("optim_target_modules", "optimizer.target_modules", f"galore {_APOLLO}", _targets, None, "optim"),
        # the others
        Key("badam_switch_interval", "optimizer.switch_interval", "badam"),
        Key("badam_verbose", "optimizer.switch_interval", "badam", unread),
        Key("badam_switch_mode", "optimizer.switch_mode", "badam"),
        Key("badam_mode", "optimizer.switch_mode", "badam", _whole_layers),
        Key("badam_start_block", "optimizer.start_block", "badam"),
        Key("loraplus_lr_ratio", "optimizer.lr_ratio", "lora_plus", float),
        Key("loraplus_lr_embedding", "optimizer.lr_embedding", "lora_plus", float),
        Key("optim_args.r", "optimizer.power", "schedule_free_adamw", float, None, "optim"),
        Key("optim_args.weight_lr_power", "optimizer.power", "schedule_free_adamw", only("2", "2.0"), None, "optim"),
        Key("optim_args.momentum", "optimizer.momentum", "sgd", float, None, "optim"),
        Key("optim_args.dampening", "optimizer.momentum", "sgd", only("0", "0.0"), None, "optim"),
        Key("optim_args.nesterov", "optimizer.nesterov", "sgd", None, None, "optim"),
    )
