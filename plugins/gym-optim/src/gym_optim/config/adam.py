"""AdamW and its nearest kin, as a recipe sees them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import prod
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from gym_core import Flat
from gym_optim.config.base import (
    AdamOptions,
    AfterBackward,
    Alone,
    Beta1,
    Beta2,
    Decay,
    Elementwise,
    Groups,
    Whole,
    coded,
    each,
    only,
    optim,
)
from gym_optim.roles import is_inside, is_matrix

_NOT_HERE = (
    *(
        "adamw_torch_xla",
        "adamw_torch_npu_fused",
        "adamw_apex_fused",
        "adamw_anyprecision",
        "grokadamw",
        "stable_adamw",
    ),
    *("ademamix", "paged_ademamix_32bit", "rmsprop", "rmsprop_bnb", "rmsprop_bnb_32bit"),
)
#: What leads to AdamW and is none, with what to set.
_NO_ADAMW = dict.fromkeys(_NOT_HERE, "optim: adamw_torch") | {"adagrad": "optim: adafactor"}
_NO_8BIT = dict.fromkeys(
    ("adamw_torch_4bit", "ademamix_8bit", "rmsprop_bnb_8bit"), "optim: adamw_8bit"
) | dict.fromkeys(("paged_adamw_32bit", "paged_ademamix_8bit"), "optim: paged_adamw_8bit")


class AdamW(AdamOptions, Alone, Elementwise):
    """Adam with decoupled weight decay, fused.

        m = beta1 m + (1 - beta1) G
        v = beta2 v + (1 - beta2) G^2
        W = (1 - eta lambda) W - eta (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

    W is a parameter of any shape, G its gradient; m and v have its shape and begin at zero, t counts steps from 1, eta is the
    learning rate, lambda `weight_decay`, and everything is number by number. All parameters get this; norms and biases do not
    decay.

    State: 8 m n bytes for a matrix m x n, the two moments in fp32; 8 a number of everything else.

    Code: torch's, all parameters in one kernel; it is right and kept. Ours around it keeps m and v in fp32 where parameters
    are not.

    Differs: decay is times the learning rate, as in torch. In the paper (algorithm 2) it is times the schedule alone, so a
    lambda from there is to be divided by the peak learning rate.

    Not with: `in_backward: true` refuses `accumulate` above 1, `max_grad_norm` above 0, a second process and AdaLoRA; without
    it, `ddp` and `fsdp` are fine.

    Proof: equals the formula in float64 with all options set (`test_adamw_is_its_formula`); what other optimizers leave to it
    is torch's bit for bit (`test_the_rest_is_torchs_adamw`); in the backward pass it takes the same steps and holds no
    gradient (`test_in_backward_is_the_same_step_and_holds_no_gradient`); several processes, in shards too, train as one does
    (`test_any_number_of_processes_trains_the_same`); a checkpoint goes on bit for bit
    (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.adamw:AdamW"

    in_backward: Annotated[bool, optim(_NO_ADAMW)] = False
    """Update each parameter during the backward pass, so that no more than one gradient is held; without accumulation,
    clipping and further processes."""


class AdamW8bit(AdamOptions, Alone, Whole):
    """AdamW whose moments are 8-bit codes: a quarter of its state.

        m = beta1 decode(m8) + (1 - beta1) G,    m8 = encode(m)
        v = beta2 decode(v8) + (1 - beta2) G^2,  v8 = encode(v)
        W = (1 - eta lambda) W - eta (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

    The step uses m and v as they are before they are stored. encode divides each block of 256 numbers by its largest
    magnitude, which is kept in fp32, and takes the nearest of 256 values in [-1, 1], for v in (0, 1], that lie evenly within
    each power of ten (dynamic tree quantization). Embeddings, head, norms, biases and parameters of fewer than `smallest`
    numbers get AdamW in fp32.

    State: 2 m n + 8 ceil(m n / 256) bytes for a matrix m x n, which is 2.03 a number; 8 a number of what keeps 32 bits.

    Code: ours, in plain torch. bitsandbytes is one more compiled dependency; ours is slower on a GPU, and resumes bit for bit
    on anything.

    Differs: the code of v has no zero, so that a small second moment cannot become nothing and make the next step huge.
    Blocks are of 256 numbers, as in bitsandbytes, where the paper has 2048. The paper's norm behind the embedding is not
    added.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.

    Proof: ends within 1 % of the loss of 32 bits with at most 2.1 bytes a number (`test_eight_bits_end_where_thirty_two_do`);
    codes are ordered and near what they stand for (`test_eight_bit_codes_are_near_and_ordered`); numbers far smaller than
    their block do not leap (`test_eight_bit_moments_survive_what_is_far_smaller_than_its_block`); the state is the declared
    one (`test_state_takes_what_is_declared`); a checkpoint goes on bit for bit (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.quantized:AdamW8bit"

    smallest: PositiveInt = 4096
    """Parameters of fewer numbers keep 32 bits, as embeddings and vectors do."""
    in_backward: Annotated[bool, optim(_NO_8BIT)] = False
    """Update each parameter during the backward pass, so that no more than one gradient is held; without accumulation,
    clipping and further processes."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of codes and scales, and of two fp32 moments for what keeps 32 bits."""
        return each(
            parameters,
            lambda group, name, shape: (
                2 * coded(prod(shape)) if is_inside(group, shape) and prod(shape) >= self.smallest else 8 * prod(shape)
            ),
        )


class PagedAdamW8bit(AdamW8bit):
    """8-bit AdamW of bitsandbytes whose state leaves the GPU where its memory is short; needs CUDA.

        m = beta1 decode(m8) + (1 - beta1) G,    m8 = encode(m)
        v = beta2 decode(v8) + (1 - beta2) G^2,  v8 = encode(v)
        W = (1 - eta lambda) (W - eta (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon))

    encode divides each block of 256 numbers by its largest magnitude and takes the nearest of 256 values; decay comes after
    the step. Codes and scales lie in memory that CUDA moves between machine and GPU, page by page (the paper, section 3). All
    parameters of `smallest` numbers or more get this, embeddings and head too; smaller ones get AdamW with moments in fp32.

    State: 2 m n + 8 ceil(m n / 256) bytes for a matrix m x n, which is 2.03 a number; 8 a number of what keeps 32 bits.

    Code: that of bitsandbytes (`pip install 'gym-optim[paged]'`): paging is a service of CUDA.

    Differs: from `adamw_8bit` in that embeddings and head have 8 bits too, and in where decay stands.

    Not with: machines without CUDA, or without bitsandbytes, where it is refused by name; `distributed: fsdp`, which cuts
    parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm` above 0, a second process and AdaLoRA.

    Proof: refused by name without CUDA (`test_without_cuda_it_is_refused_by_name`); on a GPU it ends where AdamW does, in two
    bytes a number beside scales, and goes on from its state bit for bit
    (`test_it_ends_where_adamw_does_and_goes_on_from_its_state`, which needs one).
    """

    target: ClassVar[str] = "gym_optim.paged:paged_adamw_8bit"
    general: ClassVar[bool] = False
    device: ClassVar[str] = "cuda"

    smallest: PositiveInt = 4096
    """Parameters of fewer numbers keep 32 bits."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of codes and scales, and of two fp32 moments for what keeps 32 bits."""
        return each(
            parameters,
            lambda group, name, shape: 2 * coded(prod(shape)) if prod(shape) >= self.smallest else 8 * prod(shape),
        )


class AdamMini(AdamOptions, Alone, Whole):
    """AdamW with one second moment for each head of queries and keys, row of another matrix, or vector: half its state.

        m   = beta1 m + (1 - beta1) G
        v_b = beta2 v_b + (1 - beta2) mean(G_b^2)     for each block b
        W_b = (1 - eta lambda) W_b - eta (m_b / (1 - beta1^t)) / (sqrt(v_b / (1 - beta2^t)) + epsilon)

    m has the shape of W, v one number for each block: the `head_dim` rows of a head of projections to queries and keys, a row
    of every other matrix, the row of a token of embeddings and head, a whole norm or bias. All parameters get this; norms and
    biases do not decay.

    State: 4 m n + 4 m bytes for a matrix m x n, each of a stack too, 4 m n + 4 m / head_dim for queries and keys; 4 a number
    and 4 more for a vector.

    Code: ours, from the paper: the reference has no licence.

    Differs: the rows of a head come from the model. The reference divides the width by the number of heads, which does not
    fit Qwen3. On the model of two layers of `benchmarks/optim.py` it ends further above AdamW than 3 %, each at its best
    rate; on the one of 30M parameters it does not. The blocks are the paper's.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.

    Proof: equals AdamW where a block is one number (`test_adam_mini_of_blocks_of_one_number_is_adamw`); equals the formula
    for rows, heads and a whole matrix (`test_adam_mini_has_one_second_moment_a_block`); runs with the heads of Qwen3-4B
    (`test_adam_mini_runs_with_the_heads_of_qwen3_4b`); the state is the declared one (`test_state_takes_what_is_declared`); a
    checkpoint goes on bit for bit (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.adam_mini:AdamMini"

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of the first moment and of one number for each block."""
        return each(
            parameters,
            lambda group, name, shape: 4 * prod(shape) + 4 * (prod(shape[:-1]) // (group.get("head_dim") or 1)),
        )


class ScheduleFreeAdamW(AdamOptions, AfterBackward, Elementwise):
    """AdamW that averages its iterates in place of a falling rate; set `scheduler: constant`, with warm-up.

        v = beta2 v + (1 - beta2) G^2
        d = G / (sqrt(v / (1 - beta2^t)) + epsilon) + lambda y
        z = z - eta d
        x = (1 - c) x + c z,  c = w_t / (w_1 + ... + w_t),  w_t = t^power max(eta_1, ..., eta_t)^2
        y = (1 - beta1) z + beta1 x

    The parameters hold y while training, and G is the gradient there; z are the iterates, x is their average, the weights to
    use; x, y and z begin at the parameter's value, v at zero. x follows from y and z and is not stored, so `beta1` must not
    be zero. All parameters get this; norms and biases do not decay.

    State: 8 m n bytes for a matrix m x n, z and v; 8 a number of everything else.

    Code: ours, from the paper (algorithm 1). The reference is switched between training and evaluation by hand, and what a
    checkpoint holds depends on it.

    Differs: checkpoints, that of `keep_best` too, hold y, so that a resumed run is exact; evaluation and the final model use
    x. The weight of a step takes the largest rate so far, as the reference does, where the paper has that of the step.

    Not with: a rate that falls, as of the default `scheduler: linear`: the run says so and goes on. Steps are counted for all
    parameters at once, so there is no `in_backward`. `ddp` and `fsdp` are fine.

    Proof: equals the algorithm with x, y and z written out (`test_schedule_free_is_its_formula_and_gives_the_average`) and
    the reference class on a parabola, 1e-6 (`test_schedule_free_is_the_reference_class`);
    becomes Polyak's average of Adam's iterates as beta1 goes to 0
    (`test_schedule_free_of_next_to_no_beta_averages_the_iterates_of_adam`); a run ends with the average
    (`test_the_model_of_a_schedule_free_run_is_the_average`) and is resumed bit for bit though it evaluates
    (`test_a_schedule_free_run_that_evaluates_is_resumed_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.schedule_free:ScheduleFreeAdamW"

    beta1: Annotated[Beta1, Field(gt=0)] = 0.9
    """Share of the average, as against the newest iterate, at which gradients are taken."""
    power: Annotated[
        float,
        Field(ge=0),
        Flat("optim_args.r", convert=float, chosen_by="optim"),
        Flat("optim_args.weight_lr_power", convert=only("2", "2.0"), chosen_by="optim"),
        optim(dict.fromkeys(("schedule_free_radam", "schedule_free_sgd"), "optim: schedule_free_adamw")),
    ] = 0.0
    """In the average, step t counts t ** power times the square of the largest learning rate so far."""

    def averages(self) -> bool:
        """The average stands in for a falling learning rate."""
        return True

    def evaluation_weights(self, optimizer: Any) -> AbstractContextManager[None]:
        """Have the parameters hold the average; takes the memory of one more copy of them."""
        averaged: AbstractContextManager[None] = optimizer.averaged()
        return averaged


class SOAP(AdamOptions, Alone, Whole):
    """Adam in the eigenbasis of Shampoo's preconditioner, for matrices inside the model.

        M = beta1 M + (1 - beta1) G
        V = beta2 V + (1 - beta2) (Q_L^T G Q_R)^2
        N = (Q_L^T M Q_R / (1 - beta1^t)) / (sqrt(V / (1 - beta2^t)) + epsilon)
        W = (1 - eta lambda) W - eta Q_L N Q_R^T
        L = b L + (1 - b) G G^T,  R = b R + (1 - b) G^T G
        every `interval` steps: Q_L = QR(L Q_L), Q_R = QR(R Q_R)

    W, G, M and V are m x n, L and Q_L m x m, R and Q_R n x n; b is `shampoo_beta`. The first gradient is only looked at: it
    begins L and R, whose eigenvectors Q_L and Q_R are; t counts from the second. Before QR, columns are sorted by their
    eigenvalues and V with them. A side longer than `largest` has Q = 1. Each expert of a stack is a matrix of its own.
    Embeddings, head, norms, biases and single rows or columns get AdamW with the same options.

    State: 8 m n + 8 (m^2 + n^2) bytes for a matrix m x n, without the square of a side longer than `largest`; 8 a number of
    everything else.

    Code: ours, from the paper: the reference is a single release without upkeep.

    Differs: epsilon is added after the bias of V is corrected and decay comes before the step, as in AdamW; in the reference
    it is the other way round.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.

    Proof: equals AdamW where the eigenbasis is the standard one
    (`test_soap_is_adamw_where_the_eigenbasis_is_the_standard_one`); equals the formula over refreshed bases, and leaves out
    long sides (`test_soap_is_its_formula_over_a_refreshed_basis`); the state is the declared one
    (`test_state_takes_what_is_declared`); a checkpoint goes on bit for bit, with every adapter
    (`test_a_pair_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.soap:SOAP"

    beta1: Beta1 = 0.95
    """Decay of the running mean of the gradient."""
    beta2: Beta2 = 0.95
    """Decay of the running mean of its square, in the eigenbasis."""
    weight_decay: Decay = 0.01
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""
    shampoo_beta: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the running means of the products of the gradient with itself."""
    interval: PositiveInt = 10
    """Steps between two refreshments of the eigenbasis."""
    largest: PositiveInt = 10_000
    """Sides of a matrix that are longer are left as they are."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments, and of a mean and a basis for each side of a matrix."""
        return each(
            parameters,
            lambda group, name, shape: (
                8 * prod(shape)
                + is_matrix(group, shape)
                * prod(shape[:-2])
                * sum(8 * side**2 for side in shape[-2:] if side <= self.largest)
            ),
        )
