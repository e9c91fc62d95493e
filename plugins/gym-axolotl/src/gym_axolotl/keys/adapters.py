"""`adapter`, and the keys of LoRA."""

from __future__ import annotations

import re
from typing import Any

from gym_axolotl.table import Keys
from gym_dialect import Choice, Key

_LORA = "lora dora rslora pissa olora eva loftq"
_TARGETED = f"{_LORA} expert_lora"
_NARROWER = "peft_use_dora peft_use_rslora peft_init_lora_weights peft.loftq_config lora_target_parameters"
_USUAL = ("q_proj", "v_proj")  #: what peft adapts in most families where a file names nothing
#: A pattern that means layers of the language model, by the last parts of their names: `(q|k)_proj` or `q_proj`.
_PATTERN = re.compile(
    r"(?:model\.)?(?:(?:language|text)_model\.)?(?:model\.)?layers\.0\."
    r"(?:\(_checkpoint_wrapped_module\.\)\?)?(?:\(?(?:mlp|cross_attn|self_attn)(?:\|(?:mlp|cross_attn|self_attn))*\)?\.)?([\w|()]+)"
)
#: Patterns of weights that are the language model, its embeddings and its head.
_LANGUAGE = re.compile(
    r"\^?((model\.)?language_model(\.model)?|lm_head|(model\.)?embed_tokens)(\.weight\$?|\.?\*|\.\*\$)?"
)
_VOCABULARY = ("embed_tokens", "lm_head", "embed_in", "embed_out", "wte", "wpe", "word_embeddings")
"""Embeddings and heads, by their usual names; `all` takes neither."""
_ALTERNATIVES = re.compile(r"(\w*)\(([\w|]+)\)(\w*)")


def targets(value: Any, lora_target_linear: Any = None) -> Any:
    """Return the layers that are named; None where `lora_target_linear` means all. Raises ValueError for other patterns,
    and for a mapping.

    Without either they are those that peft adapts in most families.
    """
    if lora_target_linear is True:
        return _also_linear(value)
    if isinstance(value, list | tuple):
        return list(value) or list(_USUAL)
    if not isinstance(value, str):
        raise ValueError("is a list of names of layers")
    if not re.search(r"[()|*+\[\]\\?]", str(value)):
        return str(value).replace("all-linear", "all")
    found = _PATTERN.fullmatch(str(value).replace(r"[\d]+", "0").replace(r"\d+", "0").replace(r"\.", "."))
    if not found:
        raise ValueError(
            "is a pattern: list the names of layers, such as [q_proj, v_proj], or set `lora_target_linear: true`"
        )
    parts = _ALTERNATIVES.fullmatch(found[1])
    return [f"{parts[1]}{name}{parts[3]}" for name in parts[2].split("|")] if parts else [found[1]]


def _also_linear(value: Any) -> None:
    """Take names beside `lora_target_linear: true`. Raises ValueError for those that it does not mean."""
    named = [str(name).rpartition(".")[2] for name in ([value] if isinstance(value, str) else value)]
    if beyond := [name for name in named if name in _VOCABULARY]:
        raise ValueError(
            f"`{beyond[0]}` is no layer that `lora_target_linear: true` means: leave that out, and list all layers"
        )


def unfrozen(patterns: Any) -> None:
    """Take patterns that mean the language model, which trains anyway. Raises ValueError for others."""
    odd = [str(each) for each in patterns if not _LANGUAGE.fullmatch(str(each).replace(".*", "*"))]
    whole = any("language_model" in str(each) for each in patterns)
    if odd or not whole:
        named = f"`{odd[0]}` names" if odd else "they name"
        raise ValueError(
            f"{named} some weights of the language model: set `adapter: {{name: freeze, trainable_layers: N}}`"
        )


def rank(value: Any) -> Any:
    """Return LoftQ's bits."""
    return dict(value).get("loftq_bits", 4)


class AdapterKeys(Keys):
    """Keys that say what is trained."""

    choices = (
        Choice(
            "adapter",
            "adapter",
            {"lora": "lora", "qlora": "lora"},
            default="full",
            yields={"lora": _NARROWER, "qlora": _NARROWER},
            refused={"llama-adapter": "adapter: lora", "oft": "the section `adapter: oft`"},
        ),
        Choice("peft_use_dora", "adapter", {"true": "dora"}),
        Choice("peft_use_rslora", "adapter", {"true": "rslora"}),
        Choice("peft.loftq_config", "adapter", {"*": "loftq", "false": ""}),
        Choice("lora_target_parameters", "adapter", {"*": "expert_lora", "false": ""}),
        Choice(
            "peft_init_lora_weights",
            "adapter",
            {"eva": "eva", "olora": "olora", "pissa": "pissa"},
            refused={"gaussian": "it to true", "loftq": "`peft: {loftq_config: {loftq_bits: 4}}`"},
            read=lambda value: "" if value is True else str(value),
        ),
    )
    keys = (
        Key("lora_r", "adapter.rank", _TARGETED),
        Key("lora_alpha", "adapter.alpha", _TARGETED),
        Key("lora_dropout", "adapter.dropout", _LORA),
        Key("lora_target_linear", "adapter.target_modules", _TARGETED, {True: "all", False: None}),
        Key("lora_target_modules", "adapter.target_modules", _LORA, targets, (), together="lora_target_linear"),
        Key("lora_target_modules", "adapter.target_modules", "expert_lora", targets, together="lora_target_linear"),
        Key("lora_target_parameters", "adapter.target_parameters", "expert_lora"),
        Key("lora_modules_to_save", "adapter.modules_to_save", _TARGETED),
        Key("lora_model_dir", "adapter.adapter_name_or_path", "lora rslora pissa olora eva"),
        Key("unfrozen_parameters", "adapter.freeze_vision_tower", f"full {_LORA}", unfrozen),
        Key("peft.loftq_config", "adapter.bits", "loftq", rank),
    )
