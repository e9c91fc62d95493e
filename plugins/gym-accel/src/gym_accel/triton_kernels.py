"""Kernels in Triton: a program reads what it needs once, computes in fp32, and rounds nothing but what it writes.

Where a dimension is called BLOCK, it is that of the data, filled up to a power of two. Triton reads annotations: they are names
of its own.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm(
    given: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    inverse: tl.tensor,
    dim: tl.tensor,
    eps: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Write `given / sqrt(mean(given^2) + eps) * weight` of a row, and one over that root."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < dim
    held = tl.load(given + row * dim + at, inside, 0.0).to(tl.float32)
    factor = tl.math.rsqrt(tl.sum(held * held, 0) / dim + eps)
    scale = tl.load(weight + at, inside, 0.0).to(tl.float32)
    tl.store(inverse + row, factor)
    tl.store(out + row * dim + at, (held * factor * scale).to(out.dtype.element_ty), inside)


@triton.jit
def norm_back(
    given: tl.tensor, weight: tl.tensor, inverse: tl.tensor, by_out: tl.tensor,
    by_given: tl.tensor, by_weight: tl.tensor, rows: tl.tensor, dim: tl.tensor, each: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Write the gradients of `each` rows, and their part of the weight's: `by_weight` `[programs, dim]`."""
    first = tl.program_id(0).to(tl.int64) * each
    at = tl.arange(0, BLOCK)
    inside = at < dim
    scale = tl.load(weight + at, inside, 0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(first, tl.minimum(first + each, rows)):
        factor = tl.load(inverse + row)
        plain = tl.load(given + row * dim + at, inside, 0.0).to(tl.float32) * factor
        pulled = tl.load(by_out + row * dim + at, inside, 0.0).to(tl.float32)
        total += pulled * plain
        scaled = pulled * scale
        found = factor * (scaled - plain * (tl.sum(scaled * plain, 0) / dim))
        tl.store(by_given + row * dim + at, found.to(by_given.dtype.element_ty), inside)
    tl.store(by_weight + tl.program_id(0) * dim + at, total, inside)


@triton.jit
def _slope(gate: tl.tensor, TANH: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return z and its derivative, where the activation is `gate * sigmoid(z)`."""
    if TANH:  # 1 + tanh(u) is 2 sigmoid(2 u)
        inner = 1.5957691216057308 * gate * (1 + 0.044715 * gate * gate)
        return inner, 1.5957691216057308 * (1 + 0.134145 * gate * gate)
    return gate, tl.full(gate.shape, 1.0, tl.float32)


@triton.jit
def gated(
    gate: tl.tensor,
    up: tl.tensor,
    out: tl.tensor,
    dim: tl.tensor,
    gate_row: tl.tensor,
    up_row: tl.tensor,
    TANH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write `act(gate) * up` of a part of a row; rows of `gate` and `up` are so many numbers apart."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < dim
    held = tl.load(gate + row * gate_row + at, inside, 0.0).to(tl.float32)
    other = tl.load(up + row * up_row + at, inside, 0.0).to(tl.float32)
    inner, _ = _slope(held, TANH)
    tl.store(out + row * dim + at, (held * tl.sigmoid(inner) * other).to(out.dtype.element_ty), inside)


@triton.jit
def gated_back(
    gate: tl.tensor, up: tl.tensor, by_out: tl.tensor, by_gate: tl.tensor,
    by_up: tl.tensor, dim: tl.tensor, gate_row: tl.tensor, up_row: tl.tensor,
    TANH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Write the gradients of a part of a row, contiguous, given that of what came out."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < dim
    held = tl.load(gate + row * gate_row + at, inside, 0.0).to(tl.float32)
    other = tl.load(up + row * up_row + at, inside, 0.0).to(tl.float32)
    pulled = tl.load(by_out + row * dim + at, inside, 0.0).to(tl.float32)
    inner, slope = _slope(held, TANH)
    share = tl.sigmoid(inner)
    by_held = pulled * other * share * (1 + held * (1 - share) * slope)
    tl.store(by_gate + row * dim + at, by_held.to(by_gate.dtype.element_ty), inside)
    tl.store(by_up + row * dim + at, (pulled * held * share).to(by_up.dtype.element_ty), inside)


@triton.jit
def turn(
    given: tl.tensor, cos: tl.tensor, sin: tl.tensor, out: tl.tensor, tokens: tl.tensor,
    heads: tl.tensor, half: tl.tensor, row: tl.tensor, head: tl.tensor, token: tl.tensor,
    along: tl.tensor, BACK: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Turn all heads of a token, by halves, or turn their gradients back; `out` is `[rows, tokens, heads, 2 half]`."""
    here = tl.program_id(0).to(tl.int64)
    of, place = here // tokens, here % tokens
    number, at = tl.arange(0, HEADS).to(tl.int64)[:, None], tl.arange(0, BLOCK)[None]  # heads may lie far apart
    inside = (number < heads) & (at < half)
    angle = of * along + place * 2 * half + at
    kept, turned = (
        tl.load(cos + angle, at < half, 0.0).to(tl.float32),
        tl.load(sin + angle, at < half, 0.0).to(tl.float32),
    )
    second, last = tl.load(cos + angle + half, at < half, 0.0), tl.load(sin + angle + half, at < half, 0.0)
    begin = given + of * row + place * token + number * head + at
    one, other = tl.load(begin, inside, 0.0).to(tl.float32), tl.load(begin + half, inside, 0.0).to(tl.float32)
    if BACK:
        first = one * kept + other * last.to(tl.float32)
        final = other * second.to(tl.float32) - one * turned
    else:
        first = one * kept - other * turned
        final = other * second.to(tl.float32) + one * last.to(tl.float32)
    to = out + (here * heads + number) * 2 * half + at
    tl.store(to, first.to(out.dtype.element_ty), inside)
    tl.store(to + half, final.to(out.dtype.element_ty), inside)


@triton.jit
def label_scores(
    logits: tl.tensor,
    labels: tl.tensor,
    scores: tl.tensor,
    size: tl.tensor,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write `log p(label)` of a row of logits, and with RESIDUAL `p - 1` in their place.

    The sum of exponentials is kept relative to the largest logit so far (arXiv:1805.02867, algorithm 3).
    """
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    known = (label >= 0) & (label < size)
    begin = logits + row * size
    largest, total = -float("inf"), 0.0
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        held = tl.load(begin + at, at < size, -float("inf")).to(tl.float32)
        higher = tl.maximum(largest, tl.max(held, 0))
        against = tl.where(higher == -float("inf"), 0.0, higher)  # nothing but -inf so far
        total = total * tl.exp(largest - against) + tl.sum(tl.exp(held - against), 0)
        largest = higher
    normalizer = tl.where(largest == -float("inf"), 0.0, largest) + tl.log(total)
    own = tl.load(begin + label, known, float("nan")).to(tl.float32)
    tl.store(scores + row, own - normalizer)
    if RESIDUAL:
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            held = tl.load(begin + at, at < size, -float("inf")).to(tl.float32)
            found = tl.exp(held - normalizer) - (at == label).to(tl.float32)
            tl.store(begin + at, found.to(logits.dtype.element_ty), at < size)
