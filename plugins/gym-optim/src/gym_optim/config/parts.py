"""Optimizers that work on a part of the model at a time, and those for LoRA adapters, as a recipe sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from gym_core import Flat
from gym_optim.config.base import AdamOptions, AfterBackward, Elementwise, Groups, Whole
from gym_optim.roles import badam_block, block_of


def _whole_layers(mode: Any) -> None:
    """LLaMA-Factory has a second method under the same name."""
    if mode != "layer":
        raise ValueError(f"only whole layers take turns here, not `{mode}`: leave it out, or set `use_badam: false`")


def _nothing(value: Any) -> None:
    """Accept a key that has no meaning here."""


class _Blockwise(AdamOptions, Whole):
    """AdamW on some parameters at a time; the gradients of the others go during the backward pass."""

    def keeps_gradients(self) -> bool:
        """Those of what works at a time."""
        return False

    def updates_in_backward(self) -> bool:
        """Never."""
        return False

    def gradient_bytes(self, parameters: Groups) -> int:
        """Return the bytes of the gradients of what works at a time: half of its moments."""
        return self.declared_bytes(parameters) // 2


class LISA(_Blockwise):
    """AdamW on what stands outside the layers and on a few layers, drawn anew every so many steps.

        A = what stands outside the layers, and `layers` of them, drawn for each period of `interval` steps
        W in A:  m = beta1 m + (1 - beta1) G,  v = beta2 v + (1 - beta2) G^2
                 W = (1 - eta lambda) W - eta (m / (1 - beta1^k)) / (sqrt(v / (1 - beta2^k)) + epsilon)
        other W: stays as it is, its gradient goes at once, m and v are dropped

    A layer is told by the path of its parameters up to the first number; embeddings, head and the last norm stand outside. k
    counts the steps since W came into A, m and v begin at zero there. Layers are drawn without repetition from the seed and
    the number of the period, so a resumed run goes on with the same. Norms and biases do not decay.

    State: 8 bytes a number of what stands outside and of the layers that work: 8 m n for a matrix m x n of theirs, none for
    others.

    Code: ours, from the paper: the reference is part of a framework for training.

    Differs: the backward pass is whole, and a gradient that is not used goes when it is there: the memory of gradients is
    saved, their time is not. A layer that rests forgets its moments.

    Not with: several processes, be it `ddp` or `fsdp`, whose gradients would be exchanged before it is known which are
    needed; AdaLoRA, which looks at the gradients of all layers; parameters without names.

    Proof: equals AdamW when all layers work (`test_lisa_of_all_layers_is_adamw`); what rests does not move by a bit, and in
    time every layer works (`test_lisa_moves_what_stands_outside_and_a_few_layers`); no gradient stays that is not used
    (`test_a_gradient_that_is_not_used_goes_at_once`); the gradients that stay are the declared ones
    (`test_the_gradients_that_stay_are_those_declared`); a checkpoint goes on in the middle of a turn
    (`test_a_state_goes_on_in_the_middle_of_a_turn`).
    """

    target: ClassVar[str] = "gym_optim.blockwise:LISA"

    layers: PositiveInt = 2
    """How many layers work at a time."""
    interval: PositiveInt = 20
    """Steps between two draws."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the draws."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments for what stands outside and for as many of the largest layers as work."""
        sizes = _sizes(parameters, lambda group, name: block_of(name))
        return sizes.pop("", 0) + sum(sorted(sizes.values())[-self.layers :])


class BAdam(_Blockwise):
    """AdamW on one layer after another.

        B = the block whose turn it is, for `interval` steps
        W in B:  m = beta1 m + (1 - beta1) G,  v = beta2 v + (1 - beta2) G^2
                 W = (1 - eta lambda) W - eta (m / (1 - beta1^k)) / (sqrt(v / (1 - beta2^k)) + epsilon)
        other W: stays as it is, its gradient goes at once, m and v are dropped

    A block is a layer, told by the path of its parameters up to the first number. What stands outside the layers rests all the
    time, as in the paper; with `include_embedding` the embeddings are one more block, the first, with `include_lm_head` the
    head and what else is there (the last norm, the head of a critic) are, the last. Embeddings tied to the head are embeddings.
    k counts the steps of the turn, m and v begin at zero with it. Which block works follows from the number of steps, so a
    resumed run goes on with it. Norms and biases do not decay.

    State: 8 bytes a number of the block that works, declared for the largest: 8 m n for a matrix m x n of it, none for
    others.

    Code: ours, from the paper: the reference is wrong as said below.

    Differs: norms and biases do not decay; in the reference they do by a slip. Weights are fp32 already, so there is no
    further copy of the block. The backward pass is whole: the memory of gradients is saved, their time is not. BAdam by ratio
    (`badam_mode: ratio`), the second mode of its code, is in no paper and is refused by name: with its defaults, a twentieth
    of the numbers for 50 steps, 300 steps never reach most of them, so it does not pass the laws that every optimizer here
    passes.

    Not with: several processes, be it `ddp` or `fsdp`, whose gradients would be exchanged before it is known which are
    needed; AdaLoRA, which looks at the gradients of all layers; parameters without names; matrices outside the layers, such as
    the head of a critic, which would rest for ever, without `include_lm_head`.

    Proof: what rests does not move by a bit and has no state (`test_badam_moves_one_block_at_a_time`); one block is AdamW,
    bit for bit (`test_badam_of_one_block_is_adamw`), and begins anew at each turn (`test_badam_begins_anew_at_each_turn`);
    embeddings and head rest or are blocks of their own (`test_badam_leaves_embeddings_and_head_alone_unless_they_are_asked_for`);
    the gradients that stay are the declared ones (`test_the_gradients_that_stay_are_those_declared`); a checkpoint goes on in
    the middle of a turn (`test_a_state_goes_on_in_the_middle_of_a_turn`).
    """

    target: ClassVar[str] = "gym_optim.blockwise:BAdam"

    interval: Annotated[PositiveInt, Flat("badam_switch_interval"), Flat("badam_verbose", convert=_nothing)] = 50
    """Steps for which a layer works."""
    order: Annotated[
        Literal["ascending", "descending", "random", "fixed"],
        Flat("badam_switch_mode"),
        Flat("badam_mode", convert=_whole_layers),
    ] = "ascending"
    """In which layers take turns: by their numbers up or down, drawn anew each round, or `fixed`, which stays with one."""
    start: Annotated[int | None, Field(ge=0), Flat("badam_start_block")] = None
    """Number of the block to begin with; by default the first, or the last where the order is descending."""
    include_embedding: bool = False
    """Whether embeddings take turns too, as the first block."""
    include_lm_head: bool = False
    """Whether the head and what else stands outside the layers take turns too, as the last block."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the random order."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments for the largest block."""
        outside = {"include_embedding": self.include_embedding, "include_lm_head": self.include_lm_head}
        sizes = _sizes(parameters, lambda group, name: badam_block({**group, **outside}, name))
        sizes.pop(None, None)
        return max(sizes.values(), default=0)


class LoRAPlus(AdamOptions, AfterBackward, Elementwise):
    """AdamW with a higher learning rate for the B of each LoRA pair than for its A.

        B, and vectors:          AdamW with learning rate eta ratio
        A and everything else:   AdamW with learning rate eta
        adapters of embeddings:  AdamW with learning rate `embedding_lr`

    The layer computes with W + s B A; A is r x n, B is m x r. AdamW is that of `adamw`, with the same options for all; a
    schedule is a factor on all three rates. Pairs are told by the names `lora_A` and `lora_B`, adapters of embeddings by
    `lora_embedding_A` and `lora_embedding_B`. Vectors, such as the lengths of DoRA, have the rate of B, as in peft.

    State: 8 r (m + n) bytes for the pair of a matrix m x n, two fp32 moments of each number.

    Code: groups of ours over torch's fused AdamW: peft's takes the model object. The rates are the same, and a test compares
    them.

    Differs: vectors do not decay; in peft the lengths of DoRA do.

    Not with: a model without a pair of LoRA (`adapter: lora` and its kin have one), and parameters without names: both are
    refused by name. `ddp` and `fsdp` are fine; there is no `in_backward`.

    Proof: the rates are those of peft, with and without DoRA (`test_the_rates_of_lora_plus_are_those_of_peft`); other adapters
    and parameters without names are refused (`test_without_an_adapter_they_refuse`); in shards it trains as one process does
    (`test_what_works_number_by_number_trains_the_same_in_shards`); the state is the declared one
    (`test_state_takes_what_is_declared`); a checkpoint goes on bit for bit (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.lora:lora_plus"
    general: ClassVar[bool] = False

    ratio: Annotated[PositiveFloat, Flat("loraplus_lr_ratio", convert=float)] = 16.0
    """Learning rate of B over that of A."""
    embedding_lr: Annotated[PositiveFloat, Flat("loraplus_lr_embedding", convert=float)] = 1e-6
    """Learning rate of the adapters of embeddings."""


class LoRAPro(AdamOptions, AfterBackward, Whole):
    """A and B of each LoRA pair move so that their product moves as the full matrix would; its moments are full size.

        K = (B^T B + delta I)^-1,  H = (A A^T + delta I)^-1
        near(a, b, X) = (K a / s^2 + X A,  (b - B K B^T b) H / s^2 - B X)
        a, b = near(gradient of A, gradient of B, 0)
        F = s (B a + b A)
        M = beta1 M + (1 - beta1) F,  V = beta2 V + (1 - beta2) F^2
        N = (M / (1 - beta1^t)) / (sqrt(V / (1 - beta2^t)) + epsilon)
        a, b = near(s B^T N, s N A^T, X),  K^-1 X + X H^-1 = -K B^T N A^T / s
        A = (1 - eta lambda) A - eta a,  B = (1 - eta lambda) B - eta b

    The layer computes with W + s B A; A is r x n, B is m x r. F, m x n, is as near to the gradient of W as A and B can move;
    M, V and N are m x n too. X is r x r and keeps a and b closest to the gradients given (theorems 2.1 and 2.2, algorithm 2).
    What is not such a pair gets AdamW, the lengths of DoRA too, so that there it is V = W + s B A which moves so.

    State: 8 m n bytes for an adapted matrix m x n; 8 a number of everything else.

    Code: ours, from the paper: the reference is a single release without upkeep.

    Differs: s is taken from each layer, so rsLoRA and ranks of their own for some layers are right too.

    Not with: `distributed: fsdp`; a model without a pair of LoRA; AdaLoRA, whose pairs have a third factor; `expert_lora`,
    whose two matrices hold the factors of all experts, in another order each; parameters without names, or whose layer does
    not say what it multiplies B A by. All are refused by name. There is no `in_backward`.

    Proof: F is the projection of the full gradient, as `lstsq` finds it
    (`test_the_equivalent_gradient_is_the_projection_onto_what_a_and_b_can_do`); X does not move the product
    (`test_the_free_part_does_not_move_the_product_and_keeps_closest_to_the_gradients`) and solves its equation
    (`test_the_chosen_free_part_solves_the_equation_of_the_paper`); equals the algorithm (`test_lora_pro_is_its_algorithm`); a
    checkpoint goes on bit for bit (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.lora:LoRAPro"
    general: ClassVar[bool] = False

    scaling: PositiveFloat | None = None
    """What the adapter multiplies B A by; by default as it says itself, such as alpha / rank."""
    delta: PositiveFloat = 1e-8
    """Added to the diagonals of the products of A and of B with themselves, which are singular at the start."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments of each matrix that a pair makes, and of two for every other parameter."""
        shapes = {name: shape for group in parameters for name, shape in group["params"]}
        pairs = {name: name.replace("lora_A", "lora_B") for name in shapes if "lora_A" in name.split(".")}
        paired = {*pairs, *pairs.values()}
        whole: Sequence[int] = [shapes[b][0] * shapes[a][1] for a, b in pairs.items()]
        return 8 * (sum(whole) + sum(prod(shape) for name, shape in shapes.items() if name not in paired))


def _sizes(parameters: Groups, block: Callable[[Mapping[str, Any], str], str | None]) -> dict[str | None, int]:
    """Return the bytes of two fp32 moments by block."""
    sizes: dict[str | None, int] = {}
    for group in parameters:
        for name, shape in group["params"]:
            sizes[block(group, name)] = sizes.get(block(group, name), 0) + 8 * prod(shape)
    return sizes
