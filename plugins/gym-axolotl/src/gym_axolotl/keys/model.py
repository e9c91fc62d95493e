"""The model that is trained."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from gym_axolotl.table import Keys
from gym_core.discovery import installed
from gym_dialect import Key
from gym_dialect.convert import note, switched

_OF = "transformers"
_BNB = ("bnb_config_kwargs.bnb_4bit_quant_type", "bnb_config_kwargs.bnb_4bit_use_double_quant")
ALIKE = ("CutCrossEntropyPlugin", "ExpertParallelPlugin", "KernelsPlugin", "LigerPlugin", "SwanLabPlugin")
"""Packages that compute the same in another way, or write a log."""
INSTEAD = {
    "DiffusionPlugin": "texts are learnt from left to right",
    "KDPlugin": "set the section `algorithm: gkd` for a teacher",
    "LLMCompressorPlugin": "train, and then run `gym quantize`",
    "LMEvalPlugin": "run `gym eval` on the model that is made",
    "SpectrumPlugin": "set the section `adapter: {name: freeze, ...}`",
}
"""What to do in place of others."""
LIGER = (
    "liger_rope",
    "liger_rms_norm",
    "liger_glu_activation",
    "liger_layer_norm",
    "liger_cross_entropy",
    "liger_swiglu",
)
_COEFFICIENT = "model_config.router_aux_loss_coef"
_FLASH = ("flash_attention", "attn_implementation")
#: Names of libraries of kernels by what a file says, and the module without which they are nothing.
_MODULES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface", "liger": "liger_kernel"}


def kernels(_: Any, **said: Any) -> list[str] | None:
    """Return the libraries of kernels to try that keys mean, of those that are here; the same is computed without them."""
    told = str(said.get("attn_implementation") or ("flash_attention_2" if said.get("flash_attention") else ""))
    wanted = [told] if told in _MODULES else []
    wanted += ["liger"] if any(said.get(key) for key in LIGER) else []
    here = [name for name in wanted if ("kernels", name) in installed().named and find_spec(_MODULES[name])]
    for name in (name for name in wanted if name not in here):
        note(
            f"{name} needs gym-accel and the package {_MODULES[name]}; without them the kernels of Gym compute the same"
        )
    return here or None


def packages(names: Any) -> None:
    """Take the packages that a file has axolotl load. Raises ValueError for one that would compute something else."""
    for name in [names] if isinstance(names, str) else names:
        last = str(name).rpartition(".")[2]
        if last not in ALIKE:
            raise ValueError(f"`{last}` is not here: {INSTEAD.get(last, 'leave it out')}")


def balanced(on: Any, **more: Any) -> float | str | None:
    """Return the coefficient of the load-balancing loss: the one that is given, or that of the model."""
    given = more.get(_COEFFICIENT)
    return (float(given) if given is not None else "own") if switched(on) else None


def eight_bits(on: Any) -> str | None:
    """Return the quantizer of 8 bits."""
    return "bnb_8bit" if switched(on) else None


def four_bits(on: Any, **more: Any) -> dict[str, Any] | None:
    """Return the quantizer of 4 bits: normal floats, whose scales are quantized again. `adapter: qlora` asks for it."""
    if more.get("adapter") == "qlora" and on is not True:
        raise ValueError("is asked for by `adapter: qlora`: set it to true, or `adapter: lora`")
    if on is not True:
        return None
    kind, twice = (more.get(key) for key in _BNB)
    return {"name": "bnb_4bit", "quant_type": kind or "nf4", "double_quant": True if twice is None else twice}


def special(told: Any, **more: Any) -> list[str]:
    """Return special tokens that are added where the tokenizer lacks them."""
    return [*more.values(), *told] if isinstance(told, list) else [told]


def ended(token: Any, **more: Any) -> list[str] | None:
    """Return the token that ends texts, for the same; None where `additional_special_tokens` stand beside it."""
    return None if any(more.values()) else [token]


class ModelKeys(Keys):
    """Keys of the model."""

    keys = (
        Key("base_model", "model.path", _OF),
        Key("revision_of_model", "model.revision", _OF),
        Key("model_revision", "model.revision", _OF),
        Key("reinit_weights", "model.init", _OF, {True: "random", False: "pretrained"}),
        Key("load_in_8bit", "model.quantization", _OF, eight_bits),
        Key("load_in_4bit", "model.quantization", _OF, four_bits, False, together=" ".join(("adapter", *_BNB))),
        Key("", "model.kernels", _OF, kernels, "", together=" ".join((*LIGER, *_FLASH))),
        Key("plugins", "model.kernels", _OF, packages),
        Key("fp8", "model.fp8", _OF, {True: "rowwise", False: None}),
        Key("model_config.output_router_logits", "model.router_aux_loss_coef", _OF, balanced, together=_COEFFICIENT),
        Key("overrides_of_model_config.output_router_logits", "model.router_aux_loss_coef", _OF, balanced),
        Key("rope_scaling", "model.rope_scaling", _OF),
        Key("tokens", "model.add_tokens", _OF),
        Key(
            "special_tokens.additional_special_tokens",
            "model.add_special_tokens",
            _OF,
            special,
            together="special_tokens.eos_token",
        ),
        Key(
            "special_tokens.eos_token",
            "model.add_special_tokens",
            _OF,
            ended,
            together="special_tokens.additional_special_tokens",
        ),
        Key("neftune_noise_alpha", "model.neftune_noise_alpha", _OF, float),
        Key("noisy_embedding_alpha", "model.neftune_noise_alpha", _OF, float),
        Key("torch_compile", "model.compile", _OF),
        Key("trust_remote_code", "model.trust_remote_code", _OF),
    )
