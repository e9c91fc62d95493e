"""LN-tuning: the weights of the normalization layers."""

from __future__ import annotations

from typing import ClassVar

from gym_adapters.config.base import PeftOptions, SomeNames


class LNTuning(PeftOptions):
    """Trains the weights of the normalization layers, and nothing else.

        y = g * x / sqrt(mean(x^2) + eps)         or what the model has for a norm, such as LayerNorm with g and a bias

    Each norm is copied, the copy takes its place and trains (section 2), and begins as what it is of.

    Trains: `hidden` numbers for each norm, twice as many with a bias, and `head_dim` for those of heads.

    Code: peft's, which is right; the layers are found by what they are, modules of a class with `norm` in its name that hold
    vectors alone, not by the name of the family.

    Differs: every norm trains, those of heads (q_norm, k_norm) and the last one too; `target_modules` names fewer.

    On the disk: the copies by peft's names, which peft loads. Merges, to the bit: the copies take the place of the norms. Left
    out, it leaves the base, so the base is its own reference.

    Not with: names that are no norms.
    """

    target: ClassVar[str] = "gym_adapters.tuners.ln_tuning:LNTuningAdapter"

    target_modules: SomeNames = "all"
    """Normalization layers to train, such as `input_layernorm`; `all` is every one."""
