"""Optimizers that keep one moment or none, as a recipe sees them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat, ValidationInfo, field_validator

from gym_core import Flat
from gym_optim.config.base import (
    AdamOptions,
    Alone,
    Beta1,
    Decay,
    Elementwise,
    Groups,
    InBackwardAlways,
    Whole,
    each,
    only,
    optim,
)
from gym_optim.roles import is_matrix


class SGD(Alone, Elementwise):
    """Gradient descent, with momentum where it is asked for.

        g = G + lambda W
        b = momentum b + g
        W = W - eta (g + momentum b) with `nesterov`, else W - eta b

    W is a parameter of any shape, G its gradient, b has its shape and begins at zero; without momentum b is g. All parameters
    get this; norms and biases do not decay. Decay goes through the momentum, unlike that of AdamW.

    State: none, or 4 m n bytes for a matrix m x n with momentum.

    Code: ours: torch's keeps the momentum in the dtype of the parameter.

    Not with: `nesterov` without momentum. `in_backward: true` refuses `accumulate` above 1,
    `max_grad_norm` above 0, a second process and AdaLoRA; without it, `ddp` and `fsdp` are fine.

    Proof: equals the formula without momentum, with it and with Nesterov's (`test_sgd_is_its_formula`); there is state only
    with momentum (`test_sgd_has_state_only_with_momentum`); in shards it trains as one process does
    (`test_what_works_number_by_number_trains_the_same_in_shards`); a checkpoint goes on bit for bit
    (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.sgd:SGD"

    momentum: Annotated[
        float,
        Field(ge=0, lt=1),
        Flat("optim_args.momentum", convert=float, chosen_by="optim"),
        Flat("optim_args.dampening", convert=only("0", "0.0"), chosen_by="optim"),
    ] = 0.0
    """Share of the old step that is kept."""
    nesterov: Annotated[bool, Flat("optim_args.nesterov", chosen_by="optim")] = False
    """Whether the gradient is taken ahead of the momentum."""
    weight_decay: Decay = 0.0
    """Share of each matrix added to its gradient."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of the momentum, where there is one."""
        return each(parameters, lambda group, name, shape: 4 * prod(shape)) if self.momentum else 0

    @field_validator("nesterov")
    @classmethod
    def _has_momentum(cls, nesterov: bool, found: ValidationInfo) -> bool:
        if nesterov and not found.data.get("momentum"):
            raise ValueError("there is no momentum to look ahead of; set momentum: 0.9")
        return nesterov


class Lion(Alone, Elementwise):
    """The sign of an interpolated momentum: half the state of AdamW, and about a tenth of its learning rate.

        d = sign(beta1 m + (1 - beta1) G)
        W = (1 - eta lambda) W - eta d
        m = beta2 m + (1 - beta2) G

    W is a parameter of any shape, G its gradient, m has its shape and begins at zero; every number moves by eta. All
    parameters get this; norms and biases do not decay.

    State: 4 m n bytes for a matrix m x n, the momentum in fp32; 4 a number of everything else.

    Code: ours, from the paper (algorithm 2): the reference is a single release without upkeep.

    Not with: `in_backward: true` refuses `accumulate` above 1, `max_grad_norm` above 0, a second process and AdaLoRA; without
    it, `ddp` and `fsdp` are fine.

    Proof: equals the formula in float64 (`test_lion_is_its_formula`); in shards it trains as one process does
    (`test_what_works_number_by_number_trains_the_same_in_shards`); the state is the declared one
    (`test_state_takes_what_is_declared`); a checkpoint goes on bit for bit (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.lion:Lion"

    beta1: Beta1 = 0.9
    """Share of the momentum in the direction."""
    beta2: Annotated[float, Field(ge=0, lt=1), Flat("adam_beta2", default=0.999)] = 0.99
    """Decay of the momentum."""
    in_backward: Annotated[
        bool, optim(dict.fromkeys(("lion_8bit", "paged_lion_8bit", "paged_lion_32bit"), "optim: lion_32bit"))
    ] = False
    """Update each parameter during the backward pass, so that no more than one gradient is held; without accumulation,
    clipping and further processes."""
    weight_decay: Decay = 0.0
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of the momentum."""
        return each(parameters, lambda group, name, shape: 4 * prod(shape))


class _Factored(Whole):
    """The options of Adafactor."""

    torch_names: ClassVar[Mapping[str, tuple[str, int | None]]] = {
        "epsilon": ("eps", 0),
        "floor": ("eps", 1),
        "clip": ("d", None),
    }

    beta2_decay: Annotated[float, Field(lt=0)] = -0.8
    """At step t the running mean of squares takes t ** beta2_decay of the new one."""
    clip: PositiveFloat = 1.0
    """Largest root mean square of an update, before the learning rate."""
    epsilon: PositiveFloat = 1e-30
    """Added to squared gradients."""
    floor: PositiveFloat = 1e-3
    """Least root mean square of a weight, where the step grows with it."""
    weight_decay: Decay = 0.0
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return four bytes for each row and column of a matrix, of each in a stack, and for each number of a vector."""
        return each(
            parameters,
            lambda group, name, shape: (
                4 * prod(shape[:-2]) * (shape[-2] + shape[-1]) if len(shape) > 1 else 4 * prod(shape)
            ),
        )


class Adafactor(_Factored, Alone):
    """The second moment of a matrix as the means of its rows and columns, and no first one.

        b = t^beta2_decay
        R = (1 - b) R + b mean over each row of (G^2 + epsilon),  C = the same over each column
        U = G / sqrt(R C^T / mean(R))
        U = U / max(1, rms(U) / clip)
        W = (1 - eta lambda) W - eta max(floor, rms(W)) U with `relative`, else (1 - eta lambda) W - eta U

    W, G and U are m x n, R has m numbers and C n; rms is the root mean square over a parameter. A vector has a second moment
    V for each number, and U = G / sqrt(V); each expert of a stack is a matrix of its own. All parameters get this; norms and
    biases do not decay.

    State: 4 (m + n) bytes for a matrix m x n; 4 a number of a vector.

    Code: ours, from the paper (algorithm 4); a learning rate of torch's means something else, as said below.

    Differs: the paper, and torch's with it, always takes the size of the weights as a factor and caps the rate, at 1/sqrt(t)
    in torch. Here the first is `relative` and the second is left to the schedule; with `relative: true` and below that cap
    both agree.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.

    Proof: equals the formula, relative or not (`test_adafactor_is_its_formula`); equals torch's below its cap, for matrices
    and vectors (`test_adafactor_is_torchs_where_that_does_not_cap_the_rate`); an expert moves as a matrix of its own
    (`test_each_expert_of_a_stack_moves_as_a_matrix_of_its_own`); the state is the declared one
    (`test_state_takes_what_is_declared`); a checkpoint goes on bit for bit (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.adafactor:Adafactor"

    relative: bool = False
    """Whether the learning rate is times the root mean square of each weight."""


class AdaLomo(_Factored, InBackwardAlways):
    """Adafactor with steps relative to the weights, in the backward pass: one gradient at a time, and hardly a state.

        in the backward pass, as soon as G is there:
        b = t^beta2_decay
        R = (1 - b) R + b mean over each row of (G^2 + epsilon),  C = the same over each column
        U = G / sqrt(R C^T / mean(R))
        U = U / max(1, rms(U) / clip)
        W = (1 - eta lambda) W - eta max(floor, rms(W)) U,  and G goes

    W, G and U are m x n, R has m numbers and C n; rms is the root mean square over a parameter. A vector has a second moment
    V for each number, and U = G / sqrt(V). All parameters get this; norms and biases do not decay.

    State: 4 (m + n) bytes for a matrix m x n, 4 a number of a vector; and one gradient at a time.

    Code: ours, from the paper: the reference is a single release without upkeep.

    Differs: decay is times the learning rate alone, as in `adafactor`, where the reference takes the size of the weight as a
    factor too. There is no second backward pass for the norm of the gradient, and no scale of the loss, which fp16 would
    need. R and C are in checkpoints.

    Not with: `accumulate` above 1, `max_grad_norm` above 0 (the default is 1), a second process and AdaLoRA, all refused by
    name.

    Proof: equals `adafactor` with `relative: true` (`test_adalomo_is_adafactor_relative_to_the_weights`), which equals its
    formula (`test_adafactor_is_its_formula`); holds one gradient, as declared
    (`test_a_plan_knows_which_gradients_an_optimizer_holds`); the state is the declared one
    (`test_state_takes_what_is_declared`); a checkpoint goes on bit for bit (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.in_backward:adalomo"


class LOMO(InBackwardAlways, Elementwise):
    """Gradient descent in the backward pass: one gradient at a time, and no state.

        in the backward pass, as soon as G is there:
        W = (1 - eta lambda) W - eta G,  and G goes

    W is a parameter of any shape, G its gradient. All parameters get this; norms and biases do not decay.

    State: none; and one gradient at a time.

    Code: ours, as `sgd`, called for one parameter at a time. The reference is a single release without upkeep.

    Differs: there is no second backward pass for the norm of the gradient, no clipping by value, and no scale of the loss,
    which fp16 would need.

    Not with: `accumulate` above 1, `max_grad_norm` above 0 (the default is 1), a second process and AdaLoRA, all refused by
    name.

    Proof: equals gradient descent bit for bit and has no state (`test_lomo_is_gradient_descent_without_state`); a second
    backward pass before the step is refused (`test_in_backward_refuses_a_second_pass`), as are accumulation and clipping
    (`test_an_optimizer_in_the_backward_pass_refuses_what_it_would_get_wrong`); holds one gradient, as declared
    (`test_a_plan_knows_which_gradients_an_optimizer_holds`).
    """

    target: ClassVar[str] = "gym_optim.in_backward:lomo"

    weight_decay: Decay = 0.0
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""

    def declared_bytes(self, parameters: Groups) -> int:
        """There is none."""
        return 0


class Muon(AdamOptions, Alone, Whole):
    """Momentum, orthogonalized, for matrices inside the model, at AdamW's learning rate; AdamW for the rest.

        M = mu M + (1 - mu) G
        X = mu M + (1 - mu) G with `nesterov`, else M
        X = X / |X|, then five times X = a X + (b X X^T + c (X X^T)^2) X,  a, b, c = 3.4445, -4.7750, 2.0315
        W = (1 - eta lambda) W - eta 0.2 sqrt(max(m, n)) X

    W, G, M and X are m x n, turned so that m <= n for the five Newton-Schulz steps; |X| is the Frobenius norm, at least 1e-7,
    mu is `momentum`. Each expert of a stack is a matrix of its own. Embeddings, head, norms, biases and single rows or columns
    get AdamW at the same eta, with `beta1`, `beta2` and `epsilon`.

    State: 4 m n bytes for a matrix m x n; 8 a number of everything else.

    Code: ours, and torch's fused AdamW for the rest: torch's Muon takes matrices alone and always computes in bf16, which a
    processor may have to emulate. Here that is so on CUDA only.

    Differs: M is a mean, where the paper has a sum; X is the same. An update is to be as long as AdamW's, 0.2 a number, and
    is that times the root mean square of the singular values that five steps leave. The coefficients are chosen to be steep
    at zero and end between 0.68 and 1.135 rather than at 1, so narrow matrices stay below 0.2; the reference does the same.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.

    Proof: singular values end between 0.68 and 1.135, next to U V^T (`test_singular_values_are_near_one`); the steps are the
    polynomial of singular values (`test_five_steps_are_a_polynomial_of_singular_values`); a wide matrix moves by 0.2 a
    number, to a tenth (`test_the_update_of_a_wide_matrix_is_as_long_as_adamws`), and any as torch's moves it
    (`test_a_matrix_moves_as_torchs_muon_moves_it`), whose directions are the same in bf16
    (`test_in_the_precision_of_torchs_its_directions_are_torchs`); the rest is torch's AdamW (`test_the_rest_is_torchs_adamw`).
    """

    target: ClassVar[str] = "gym_optim.muon:Muon"

    beta2: Annotated[float, Field(ge=0, lt=1), Flat("adam_beta2", default=0.999)] = 0.95
    """Decay of AdamW's running mean of the square."""
    weight_decay: Annotated[float, Field(ge=0), Flat("weight_decay", default=0.0)] = 0.1
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of Muon's running mean of the gradient."""
    nesterov: bool = True
    """Whether the gradient is taken ahead of the momentum."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of one moment for each matrix and two for everything else."""
        return each(parameters, lambda group, name, shape: (4 if is_matrix(group, shape) else 8) * prod(shape))
