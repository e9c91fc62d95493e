"""LoRA of the experts of a mixture."""

from __future__ import annotations

from typing import ClassVar

from gym_adapters.config.base import Names, RankOptions, SomeNames, numbered


class ExpertLoRA(RankOptions):
    """Trains a low-rank update of each expert of a mixture, whose layers hold the matrices of all experts in one tensor.

        W_e + scaling B_e A_e                     for each expert e, scaling = alpha / rank

    The tensor W `[experts, out, in]`, in which transformers keeps the matrices of all experts of a layer, stays as it is; A_e
    `[rank, in]` and B_e `[out, rank]` train. Every A_e begins uniform within 1 / sqrt(in) of zero, every B_e as zeros.
    `target_parameters` names some tensors (`experts.down_proj`, or `layers.3.mlp.experts.down_proj` for those of one layer),
    `target_modules` linear layers beside them, which are adapted as by `lora`.

    Trains: `experts rank (out + in)` numbers for a tensor `[experts, out, in]`.

    Code: peft's for first values, files and merging; ours runs the experts, for peft adds the update to all of them before
    every pass, which takes their size in memory again, and in bf16 loses what is smaller than the rounding of the weights.

    Differs: routers and linear layers are left alone unless `target_modules` names them. Experts that transformers does not run
    by its interface for them (Llama 4, JetMoe) run in peft's way. There is no dropout.

    On the disk: the A of all experts in one matrix `[experts rank, in]`, and their B in one `[out, rank experts]`, by peft's
    names, which peft loads. Merges; left out, it leaves the base to the bit, so the base is its own reference.

    Not with: models without experts in tensors of their own.
    """

    target: ClassVar[str] = "gym_adapters.tuners.expert_lora:ExpertLoraAdapter"
    needs_experts: ClassVar[bool] = True

    target_parameters: SomeNames = "all"
    """Tensors of experts to adapt, such as `experts.down_proj`; `all` is every one."""
    target_modules: Names = ()
    """Linear layers to adapt beside them, such as `q_proj,v_proj`; none by default, `all` is every one but the head."""

    def uniform_layers(self) -> bool:
        """No name singles out a layer by its number."""
        return super().uniform_layers() and not numbered(self.target_parameters)
