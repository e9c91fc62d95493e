"""Optimizers whose moments are those of a projected gradient, as a recipe sees them."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from gym_core import Flat
from gym_optim.config.base import AdamOptions, Alone, Epsilon, Groups, Shape, Whole, coded, each, only, optim
from gym_optim.roles import Names, is_matrix, is_named

Side = Literal["short", "long", "left", "right"]
_SIDES = {"std": "short", "reverse_std": "long"}
_NO_GALORE = dict.fromkeys(("galore_adafactor", "galore_adafactor_layerwise"), "optim: galore_adamw") | dict.fromkeys(
    ("galore_adamw_8bit", "galore_adamw_8bit_layerwise"), "optim: galore_adamw, or the section optimizer: q_galore"
)


def _targets(value: Any) -> Any:
    """Transformers takes a list of names, a pattern, or a word for all linear layers."""
    if not isinstance(value, str):
        return value
    if value.replace("_", "-") == "all-linear":
        return "all"
    raise ValueError("a pattern is not taken here: list names, such as [q_proj, v_proj], or say `all-linear`")


class _Projected(AdamOptions, Alone, Whole):
    """The options of optimizers that project a gradient onto its leading singular vectors."""

    rank: PositiveInt = 128
    """Dimensions of the projected gradient; a quarter of the model's is usual."""
    interval: PositiveInt = 200
    """Steps between two projections."""
    scale: PositiveFloat = 0.25
    """Of the update of a projected matrix."""
    side: Side = "short"
    """Side of the matrix that is projected."""
    modules: Names = "all"
    """Matrices inside the model that are projected, such as `q_proj,v_proj`, or `all`."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of a projected matrix's basis and moments, and of two moments for the rest."""
        return each(
            parameters,
            lambda group, name, shape: (
                self.projected(shape) if is_matrix(group, shape) and is_named(name, self.modules) else 8 * prod(shape)
            ),
        )

    def projected(self, shape: Shape) -> int:
        """Return the bytes of a basis [dim, rank], two moments [rank, other] and a mass [rank] for each matrix."""
        rank, dim, other = self.projection(shape)
        return prod(shape[:-2]) * 4 * rank * (dim + 2 * other + 1)

    def projection(self, shape: Shape) -> tuple[int, int, int]:
        """Return the rank of a projection, and the lengths of the side that is projected and of the other one."""
        sides = shape[-2:]
        dim = {"left": sides[0], "right": sides[1], "short": min(sides), "long": max(sides)}[self.side]
        return min(self.rank, *sides), dim, prod(sides) // dim


class GaLore(_Projected):
    """AdamW on the leading singular vectors of each matrix's gradient.

        at t = 1 and every `interval` steps: P' = r leading left singular vectors of G, C = P'^T P,
            M = C M, V = C^2 V, w = C^2 w, P = P'
        R = P^T G
        M = beta1 M + (1 - beta1) R
        V = beta2 V + (1 - beta2) R^2
        w = beta2 w + (1 - beta2)
        W = (1 - eta lambda) W - eta scale P (M / (1 - beta1^t)) / (sqrt(V / w) + epsilon)

    W and G are m x n with m <= n, else all is transposed, or as `side` says; P is m x r, R, M and V are r x n, r is `rank` or
    m where that is less; ^2 is number by number. w has a number for each row of V: what the weights of the squares in it sum
    to, 1 - beta2^t as long as P stays. Each expert of a stack is a matrix of its own. Embeddings, head, norms, biases, single
    rows or columns and what `modules` does not name get AdamW.

    State: 8 r max + 4 r min + 4 r bytes for a matrix of sides min and max (8 r min + 4 r max + 4 r where the long side is
    projected); 8 a number of everything else.

    Code: ours, from the paper: the reference is wrong as said below.

    Differs: M and V are brought into the new basis, M by the rotation between the bases, V by its squares, which is exact
    where coordinates are uncorrelated; the reference goes on with moments of another basis. Directions that the old basis did
    not hold have no V yet, so it is w that corrects the bias; 1 - beta2^t would take V for too small, and lengthen the step
    several times. P comes from the Gram matrix of
    the short side rather than a full SVD. Epsilon is added after the bias of V is corrected, as in the paper, and decay comes
    before the step; in the reference it is the other way round.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.

    Proof: equals AdamW in the rotated basis when the rank is full
    (`test_galore_of_full_rank_is_adamw_in_the_basis_of_the_first_gradient`), AdamW itself where that basis is the standard
    one (`test_galore_in_the_standard_basis_is_adamw`), and also where the basis changes in every step
    (`test_galore_brings_its_moments_along_when_the_basis_changes`); a change of basis does not lengthen a step
    (`test_a_change_of_basis_does_not_lengthen_a_step`); an expert moves as a matrix of its own
    (`test_each_expert_of_a_stack_moves_as_a_matrix_of_its_own`); the state is the declared one
    (`test_state_takes_what_is_declared`); a checkpoint goes on bit for bit (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.galore:GaLore"

    rank: Annotated[
        PositiveInt,
        Flat("galore_rank", default=16, chosen_by="use_galore"),
        Flat("optim_args.rank", convert=int, chosen_by="optim"),
    ] = 128
    """Dimensions of the projected gradient; a quarter of the model's is usual."""
    interval: Annotated[
        PositiveInt,
        Flat("galore_update_interval", chosen_by="use_galore"),
        Flat("optim_args.update_proj_gap", convert=int, chosen_by="optim"),
    ] = 200
    """Steps between two projections."""
    scale: Annotated[
        PositiveFloat,
        Flat("galore_scale", default=2.0, chosen_by="use_galore"),
        Flat("optim_args.scale", convert=float, chosen_by="optim"),
    ] = 0.25
    """Of the update of a projected matrix."""
    side: Annotated[
        Side,
        Flat("galore_proj_type", convert=_SIDES, chosen_by="use_galore"),
        Flat("optim_args.proj_type", convert=_SIDES, chosen_by="optim"),
    ] = "short"
    """Side of the matrix that is projected."""
    modules: Annotated[
        Names,
        Flat("galore_target", chosen_by="use_galore"),
        Flat("optim_target_modules", convert=_targets, chosen_by="optim"),
    ] = "all"
    """Matrices inside the model that are projected, such as `q_proj,v_proj`, or `all`."""
    epsilon: Annotated[Epsilon, Flat("adam_epsilon", convert=float, default=1e-6, chosen_by="optim")] = 1e-8
    """Added to the denominator."""
    in_backward: Annotated[
        bool,
        Flat("galore_layerwise", chosen_by="use_galore"),
        optim(_NO_GALORE, in_backward="galore_adamw_layerwise"),
    ] = False
    """Update each parameter during the backward pass, so that no more than one gradient is held; without accumulation,
    clipping and further processes."""


class Fira(_Projected):
    """GaLore, with what the projection leaves out added at the scale of what it keeps.

        P, R, M, V as in GaLore: R = P^T G, Adam's moments of R, brought along when P changes every `interval` steps
        N = (M / (1 - beta1^t)) / (sqrt(V / w) + epsilon)
        S_j = (G - P R)_j |N_j| / (|R_j| + 1e-8)     for each column j
        S = S min(1, 1.01 |S of the step before| / |S|)
        W = (1 - eta lambda) W - eta scale (P N + S)

    W, G and S are m x n with m <= n, else all is transposed, or as `side` says; P holds the r leading left singular vectors
    of G, m x r; R, M, V and N are r x n, w as in GaLore. The limit is on the norm of the whole of S, and lets everything pass
    after a norm of zero. Each expert of a stack is a matrix of its own. Embeddings, head, norms, biases, single rows or columns
    and what `modules` does not name get AdamW.

    State: 8 r max + 4 r min + 4 r + 4 bytes for a matrix of sides min and max, as GaLore and a norm; 8 a number of everything
    else.

    Code: ours, from the paper: the reference rests on GaLore's, with what is wrong there.

    Differs: moments follow the basis. `scale` multiplies the whole update; in the reference it multiplies P N, and the P R
    that is taken off G, but not S. The bias of M and V is corrected before S is limited, and decay comes before the step; in
    the reference both come after.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.

    Proof: equals GaLore when the rank is full (`test_fira_of_full_rank_is_galore`); equals the formula with limit
    (`test_fira_is_its_formula`); the norm grows by a hundredth at most
    (`test_the_norm_of_an_update_grows_by_a_hundredth_at_most`); the state is the declared one
    (`test_state_takes_what_is_declared`); a checkpoint goes on bit for bit (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.fira:Fira"

    def projected(self, shape: Shape) -> int:
        """Return the bytes of GaLore, and of a norm for each matrix."""
        return super().projected(shape) + 4 * prod(shape[:-2])


class QGaLore(_Projected):
    """GaLore with a 4-bit basis, 8-bit moments, and rarer projections where they hardly change.

        when due: P' = r leading left singular vectors of G, C = P'^T P, M = C M, V = C^2 V, w = C^2 w, P = round4(P')
            due again in T steps; T doubles when the mean of the last `remembered` |cos(P'_1, P_1)| is `alike` or more
        R = P^T G
        M = beta1 decode(M8) + (1 - beta1) R,    M8 = encode(M)
        V = beta2 decode(V8) + (1 - beta2) R^2,  V8 = encode(V),  w = beta2 w + (1 - beta2)
        W = (1 - eta lambda) W - eta scale P (M / (1 - beta1^t)) / (sqrt(V / w) + epsilon)

    W and G are m x n with m <= n, else all is transposed, or as `side` says; P is m x r, M and V are r x n, w has a number for
    each row of V, as in GaLore. T begins at `interval` and is each matrix's own, as each expert of a stack is one. round4 takes
    15 even values between plus and minus the largest of 256 numbers, encode is that of `adamw_8bit`. Embeddings, head, norms,
    biases, single rows or columns and what `modules` does not name get AdamW in fp32.

    State: 2.03 r max + 0.52 r min + 4 r bytes for a matrix of sides min and max: codes, a scale for 256, w; 8 a number
    elsewhere.

    Code: ours, from the paper: the reference rests on GaLore's, with what is wrong there.

    Differs: weights stay fp32, as everything that trains does in Gym. int8 weights with stochastic rounding would have to be
    weights of the model itself (forward pass, checkpoints, export); rounding fp32 parameters to that grid would bring its
    noise and none of its memory. Moments follow the basis; cosines count without sign, and are forgotten when T doubles.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.

    Proof: goes where GaLore goes with a quarter of its state
    (`test_q_galore_goes_where_galore_goes_with_a_quarter_of_its_state`); projects less often where the basis stays
    (`test_q_galore_projects_less_often_where_the_basis_stays`); four bits hold a basis to half a step
    (`test_four_bits_hold_a_basis_nearly`); the state is the declared one (`test_state_takes_what_is_declared`); a checkpoint
    goes on bit for bit (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.q_galore:QGaLore"

    alike: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Mean cosine between the first vectors of successive bases from which on the interval doubles."""
    remembered: PositiveInt = 5
    """Pairs of bases whose cosines are averaged."""

    def projected(self, shape: Shape) -> int:
        """Return the bytes of the codes and scales of basis and moments, and of a mass for each row."""
        rank, dim, other = self.projection(shape)
        return prod(shape[:-2]) * (coded(rank * dim, bits=4) + 2 * coded(rank * other) + 4 * rank)


class APOLLO(AdamOptions, Alone, Whole):
    """The gradient itself, each channel scaled by what Adam does to a random projection of it.

        R = P G,  P drawn from N(0, 1/r), another one every `interval` steps
        M = beta1 M + (1 - beta1) R,  V = beta2 V + (1 - beta2) R^2
        N = (M / (1 - beta1^t)) / (sqrt(V / (1 - beta2^t)) + epsilon)
        s_j = |N_j| / (|R_j| + 1e-8)     for each column j; `per: tensor`: for all
        U = G diag(s),  U = U min(1, 1.01 |U of the step before| / |U|)
        W = (1 - eta lambda) W - eta sqrt(scale) U

    W, G and U are m x n with m <= n, else all is transposed; P is r x m, R, M, V and N are r x n, and r is `rank`, or m where
    that is less. sqrt(scale) is the alpha of the paper. Each expert of a stack is a matrix of its own. Embeddings, head, norms,
    biases, single rows or columns and what `modules` does not name get AdamW.

    State: 8 r max + 4 bytes for a matrix whose long side is max; 8 a number of everything else.

    Code: ours, from the paper: the reference has a licence against commercial use.

    Differs: P is drawn again from a seed in each step and never stored; each matrix and each interval has its own.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.

    Proof: equals the formula over several projections (`test_apollo_is_its_formula`); a projection follows from its seed and
    keeps lengths (`test_the_projection_follows_from_the_seed_and_keeps_lengths`); the norm grows by a hundredth at most
    (`test_the_norm_of_an_update_grows_by_a_hundredth_at_most`); the state is the declared one
    (`test_state_takes_what_is_declared`); a checkpoint goes on bit for bit (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_optim.apollo:APOLLO"

    rank: Annotated[
        PositiveInt,
        Flat("apollo_rank", default=16, chosen_by="use_apollo"),
        Flat("optim_args.rank", convert=int, default=128, chosen_by="optim"),
    ] = 256
    """Dimensions of the projected gradient; a quarter of the model's is usual."""
    interval: Annotated[
        PositiveInt,
        Flat("apollo_update_interval", chosen_by="use_apollo"),
        Flat("optim_args.update_proj_gap", convert=int, chosen_by="optim"),
    ] = 200
    """Steps between two projections."""
    scale: Annotated[
        PositiveFloat,
        Flat("apollo_scale", default=32.0, chosen_by="use_apollo"),
        Flat("optim_args.scale", convert=float, chosen_by="optim"),
    ] = 1.0
    """The update is multiplied by its square root."""
    per: Annotated[
        Literal["channel", "tensor"],
        Flat("apollo_scale_type", chosen_by="use_apollo"),
        Flat("apollo_proj", convert=only("random"), chosen_by="use_apollo"),
        Flat("apollo_proj_type", convert=only("std"), chosen_by="use_apollo"),
        # the limit is on a ratio of norms
        Flat("apollo_scale_front", convert={True: None, False: None}, chosen_by="use_apollo"),
        Flat("optim_args.scale_type", chosen_by="optim"),
        Flat("optim_args.proj", convert=only("random"), chosen_by="optim"),
        Flat("optim_args.proj_type", convert=only("std"), chosen_by="optim"),
    ] = "channel"
    """Whether each channel along the long side of a matrix is scaled by itself, or the whole matrix as one."""
    modules: Annotated[
        Names,
        Flat("apollo_target", chosen_by="use_apollo"),
        Flat("optim_target_modules", convert=_targets, chosen_by="optim"),
    ] = "all"
    """Matrices inside the model that are projected, such as `q_proj,v_proj`, or `all`."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the projections."""
    epsilon: Annotated[float, Field(gt=0), Flat("adam_epsilon", convert=float, default=1e-8)] = 1e-6
    """Added to the denominator."""
    in_backward: Annotated[
        bool, Flat("apollo_layerwise", chosen_by="use_apollo"), optim({}, in_backward="apollo_adamw_layerwise")
    ] = False
    """Update each parameter during the backward pass, so that no more than one gradient is held; without accumulation,
    clipping and further processes."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments [rank, long side] and a norm for each matrix, and of full moments for the rest."""
        return each(
            parameters,
            lambda group, name, shape: (
                prod(shape[:-2]) * (8 * min(self.rank, *shape[-2:]) * max(shape[-2:]) + 4)
                if is_matrix(group, shape) and is_named(name, self.modules)
                else 8 * prod(shape)
            ),
        )


class APOLLOMini(APOLLO):
    """APOLLO of rank 1 with one factor for a whole matrix: hardly more state than gradient descent.

        R = p G,  p drawn from N(0, 1), another one every `interval` steps
        M = beta1 M + (1 - beta1) R,  V = beta2 V + (1 - beta2) R^2
        N = (M / (1 - beta1^t)) / (sqrt(V / (1 - beta2^t)) + epsilon)
        s = |N| / (|R| + 1e-8)
        U = s G,  U = U min(1, 1.01 |U of the step before| / |U|)
        W = (1 - eta lambda) W - eta sqrt(scale) U

    W, G and U are m x n with m <= n, else all is transposed; p is a row of m, R, M, V and N are rows of n, s is one number.
    It is `apollo` with `rank: 1`, `per: tensor` and `scale: 128`, whose root is the alpha of the paper. Each expert of a stack
    is a matrix of its own. Embeddings, head, norms, biases, single rows or columns and what `modules` does not name get AdamW.

    State: 8 max + 4 bytes for a matrix whose long side is max; 8 a number of everything else.

    Code: ours, from the paper: the reference has a licence against commercial use.

    Differs: p is drawn again from a seed in each step and never stored; each matrix and each interval has its own.

    Not with: `distributed: fsdp`, which cuts parameters up. `in_backward: true` refuses `accumulate` above 1, `max_grad_norm`
    above 0, a second process and AdaLoRA.

    Proof: a constant gradient is scaled as worked out by hand (`test_apollo_mini_of_a_constant_gradient`); a projection
    follows from its seed and keeps lengths (`test_the_projection_follows_from_the_seed_and_keeps_lengths`); the norm grows by
    a hundredth at most (`test_the_norm_of_an_update_grows_by_a_hundredth_at_most`); the state is the declared one
    (`test_state_takes_what_is_declared`); a checkpoint goes on bit for bit (`test_a_checkpoint_goes_on_bit_for_bit`).
    """

    rank: PositiveInt = 1
    """Dimensions of the projected gradient."""
    scale: PositiveFloat = 128.0
    """The update is multiplied by its square root."""
    per: Literal["channel", "tensor"] = "tensor"
    """Whether each channel along the long side of a matrix is scaled by itself, or the whole matrix as one."""
