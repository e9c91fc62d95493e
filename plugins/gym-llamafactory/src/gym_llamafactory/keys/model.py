"""The model that is trained."""

from __future__ import annotations

import importlib.util
from collections.abc import Container
from typing import Any

import yaml

from gym_core.discovery import catalogue, installed
from gym_core.files import expanded
from gym_dialect import Key
from gym_dialect.convert import names, note
from gym_llamafactory.table import Keys

_OF = "transformers"
_ATTENTION = {"auto": "auto", "sdpa": "sdpa", "disabled": "eager", "fa2": "auto", "fa3": "auto"}
_KERNELS = {"fa2": "flash_attention_2", "fa3": "flash_attention_3"}
_PACKAGES = {"fa2": "flash_attn", "fa3": "flash_attn_interface"}


def attention(value: Any) -> str:
    """Return the attention of that name. FlashAttention is a kernel to try in packed rows, so it is `auto` here.

    Raises ValueError for a name that is none.
    """
    name = str(value)
    if name not in _ATTENTION:
        raise ValueError(f"is one of: {', '.join(_ATTENTION)}, not `{value}`")
    if lacking := missing(name):
        note(f"flash_attn: {value} needs the package {lacking}, which is not installed; auto is used")
    return _ATTENTION[name]


def kernels(liger: Any, flash_attn: Any = "auto") -> list[str] | None:
    """Return the libraries of kernels that both keys name; None where they name none. Raises ValueError for no boolean."""
    if not isinstance(liger, bool):
        raise ValueError(f"is true or false, not `{liger}`")
    name = str(flash_attn)
    flash = [_KERNELS[name]] if name in _KERNELS and not missing(name) else []
    return [*flash, *(["liger"] if liger else [])] or None


def fp8(on: Any, fp8_backend: Any = "auto") -> str | None:
    """Return the products in fp8 that both keys mean: torchao's with a scale for each row. Raises ValueError for others."""
    if on and str(fp8_backend) not in ("auto", "torchao"):
        raise ValueError(f"`fp8_backend: {fp8_backend}` is not used here: products are those of torch, as of `torchao`")
    return "rowwise" if on else None


def special(tokens: Any, new_special_tokens_config: Any = None) -> list[str] | None:
    """Split a comma list of special tokens; a file that names them outweighs it, as there."""
    return None if new_special_tokens_config else names(tokens)


def described(file: Any) -> list[str]:
    """Return the tokens that a YAML file describes. Raises ValueError for a file that is none, or describes nothing."""
    try:
        found = yaml.safe_load(expanded(str(file)).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise ValueError(f"cannot be read: `{file}`: {reason}") from None
    if not isinstance(found, dict) or not found:
        raise ValueError(f"is a YAML file of `token: what it means`, and `{file}` holds no such lines")
    return [str(token) for token in found]


def missing(name: str, known: Container[tuple[str, str]] | None = None) -> str:
    """Return the package that an attention needs and that is not installed, empty for none.

    `known` are kinds and names of components, by default those that are installed.
    """
    if name in _PACKAGES and importlib.util.find_spec(_PACKAGES[name]) is None:
        return _PACKAGES[name]
    there = name not in _KERNELS or ("kernels", _KERNELS[name]) in (installed().named if known is None else known)
    return "" if there else catalogue().get(f"kernels/{_KERNELS[name]}", "that brings them")


class ModelKeys(Keys):
    """Keys of the model."""

    keys = (
        Key("model_name_or_path", "model.path", _OF),
        Key("model_revision", "model.revision", _OF),
        Key("train_from_scratch", "model.init", _OF, {True: "random", False: "pretrained"}),
        Key("flash_attn", "model.attention", _OF, attention),
        Key("enable_liger_kernel", "model.kernels", _OF, kernels, default=False, together="flash_attn"),
        Key("fp8", "model.fp8", _OF, fp8, together="fp8_backend"),
        Key("rope_scaling", "model.rope_scaling", _OF),
        Key("moe_aux_loss_coef", "model.router_aux_loss_coef", _OF),
        Key("resize_vocab", "model.resize_vocab", _OF),
        Key("add_tokens", "model.add_tokens", _OF, names),
        Key("add_special_tokens", "model.add_special_tokens", _OF, special, together="new_special_tokens_config"),
        Key("new_special_tokens_config", "model.add_special_tokens", _OF, described),
        Key("neftune_noise_alpha", "model.neftune_noise_alpha", _OF, float),
        Key("torch_compile", "model.compile", _OF),
        Key("trust_remote_code", "model.trust_remote_code", _OF),
    )
