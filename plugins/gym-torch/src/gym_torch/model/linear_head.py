"""Log-probabilities of labels under a linear head, with the gradients written out by hand.

With `p` the probabilities of a row and `1` its label as a one-hot vector, the gradient of `-log p(label)` by the logits
is `p - 1`. autograd would go there through three tensors of the size of the logits, and would make a gradient of the
whole weight for every chunk of rows before adding them up. Here a chunk has one tensor, the logits, which is overwritten
step by step, and its part of the weight's gradient is added in place.

Where the weight is frozen, the gradient of a row is known up to a factor as soon as its logits are, so it is computed
with them and nothing of the vocabulary's size is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gym_core import GymError
from gym_torch.kernels.fused_modules import CHOICES
from gym_torch.kernels.kernel_trials import Work

TRIED = 32  #: rows of logits in a trial of the kernel
NEAR = 512  #: rows of logits at once where none are computed again: more have left the caches before they are read
LabelScores = Callable[[Tensor, Tensor, bool], Tensor]
Also = Callable[
    [Tensor, Tensor], Tensor
]  #: from logits `[rows, vocabulary]` and labels `[rows]` to numbers `[k, rows]`
PARTS = 8  #: parts that a tensor is worked on in, where torch has no way to do it in place


def nothing_else(logits: Tensor, labels: Tensor) -> Tensor:
    """Return no numbers: `[0, rows]`."""
    return logits.new_empty(0, len(labels))


def linear_statistics(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, also: Also = nothing_else) -> Tensor:
    """Return `log p(target)` for logits `hidden @ weight.T`, differentiable, and below it what `also` says, which is not.

    `[1 + k, n]`, at least fp32.

    A derivative of its derivative is refused with GymError; `gym_torch.model.log_probs.map_logits` has one.

    Args:
        hidden: `[n, dim]`; under autocast the products run in its dtype, else in that of `hidden`.
        weight: `[vocabulary, dim]`; the parts of its gradient are added up in fp32 at least.
        targets: `[n]` int64.
        chunk: most rows of logits at once; a single chunk is kept for the backward pass, more are computed again.
        also: called once for each row, without autograd; it returns with the logits as they were.

    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    with torch.autocast(device, enabled=False):
        if torch.is_grad_enabled() and weight.requires_grad:
            found = _Trained.apply(hidden, weight, targets, chunk, dtype, also)  # type: ignore[no-untyped-call]
        elif torch.is_grad_enabled() and hidden.requires_grad:
            found = _Frozen.apply(  # type: ignore[no-untyped-call]
                hidden, weight, targets, min(chunk, NEAR), dtype, also
            )
        else:
            matrix, chunk = weight.to(dtype), min(chunk, NEAR)
            pieces = zip(hidden.to(dtype).split(chunk), targets.split(chunk), strict=True)
            found = torch.cat([_scores(rows, matrix, labels, also) for rows, labels in pieces], 1)
    scores: Tensor = found
    return scores


class _Frozen(torch.autograd.Function):
    """The weight is a constant: what a row's gradient is, up to the factor that comes from above, is kept."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, dtype: torch.dtype, also: Also
    ) -> Tensor:
        matrix = weight.to(dtype)

        def work(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            scores, residual = _scores_and_residual(rows, matrix, labels, also)
            return scores, (residual @ matrix).to(hidden.dtype)

        pieces = zip(hidden.to(dtype).split(chunk), targets.split(chunk), strict=True)
        found, pulled = zip(*(work(rows, labels) for rows, labels in pieces), strict=True)
        ctx.save_for_backward(torch.cat(pulled))
        return torch.cat(found, 1)

    @staticmethod
    def backward(ctx: Any, by_score: Tensor) -> tuple[Tensor | None, ...]:
        _check_once()
        (pulled,) = ctx.saved_tensors
        return (pulled * -by_score[0, :, None]).to(pulled.dtype), None, None, None, None, None


class _Trained(torch.autograd.Function):
    """The weight learns as well: its gradient needs the factors from above, so the logits are computed again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, dtype: torch.dtype, also: Also
    ) -> Tensor:
        matrix = weight.to(dtype)
        kept: list[Tensor] = []

        def work(rows: Tensor, labels: Tensor) -> Tensor:
            if len(hidden) > chunk:
                return _scores(rows, matrix, labels, also)
            scores, residual = _scores_and_residual(rows, matrix, labels, also)
            kept.append(residual)
            return scores

        pieces = zip(hidden.to(dtype).split(chunk), targets.split(chunk), strict=True)
        found = torch.cat([work(rows, labels) for rows, labels in pieces], 1)
        ctx.chunk, ctx.dtype = chunk, dtype
        ctx.save_for_backward(hidden, weight, targets, *kept)
        return found

    @staticmethod
    def backward(ctx: Any, by_score: Tensor) -> tuple[Tensor | None, ...]:
        _check_once()
        hidden, weight, targets, *kept = ctx.saved_tensors
        chunk, dtype = ctx.chunk, ctx.dtype
        matrix = weight.to(dtype)
        by_weight = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))

        def work(rows: Tensor, labels: Tensor, factors: Tensor) -> Tensor | None:
            residual = kept[0] if kept else _scores_and_residual(rows.to(dtype), matrix, labels)[1]
            _add_product(by_weight, residual.T, (rows * factors).to(dtype))
            return residual @ matrix * factors if ctx.needs_input_grad[0] else None

        pieces = zip(*(tensor.split(chunk) for tensor in (hidden, targets, -by_score[0, :, None])), strict=True)
        parts = [part for piece in pieces if (part := work(*piece)) is not None]
        by_hidden = torch.cat(parts).to(hidden.dtype) if parts else None
        return by_hidden, by_weight.to(weight.dtype), None, None, None, None


def _scores(rows: Tensor, matrix: Tensor, labels: Tensor, also: Also) -> Tensor:
    """Return the log-probabilities of labels, fp32 or fp64, and what else is asked for."""
    logits = rows @ matrix.T
    own, said = _kernel(logits), also(logits, labels)
    return _below(own(logits, labels, False) if own else _at(_log_softmax(logits), labels), said)


def _scores_and_residual(
    rows: Tensor, matrix: Tensor, labels: Tensor, also: Also = nothing_else
) -> tuple[Tensor, Tensor]:
    """Return the same, and `p - 1` `[rows, vocabulary]` in the dtype of the product."""
    logits = rows @ matrix.T
    own, dtype, said = _kernel(logits), logits.dtype, also(logits, labels)
    if own:
        return _below(own(logits, labels, True), said), logits
    logs = _log_softmax(logits)
    del logits
    return _below(_at(logs, labels), said), _residual(logs, labels).to(dtype)


def _below(scores: Tensor, said: Tensor) -> Tensor:
    return torch.cat([scores[None], said.to(scores.dtype)])


def _log_softmax(logits: Tensor) -> Tensor:
    """Return log-probabilities, fp32 or fp64; what is given may be overwritten."""
    logs = logits.to(torch.promote_types(logits.dtype, torch.float32))
    for part in logs.split(max(1, -(-len(logs) // PARTS))):
        part.copy_(part.log_softmax(1))  # one fused kernel on a CPU; logsumexp and a difference are five
    return logs


def _kernel(logits: Tensor) -> LabelScores | None:
    """Return the function of a kernel that takes these logits, where a trial says that one pays."""
    (rows, size), dtype = logits.shape, logits.dtype
    if not rows or not CHOICES.any():
        return None

    def work(own: LabelScores) -> Work:
        draws = torch.Generator().manual_seed(0)
        given = torch.randn(TRIED, size, generator=draws).to(logits.device, dtype)
        labels = torch.randint(size, (TRIED,), generator=draws).to(logits.device)

        def mine() -> list[Tensor]:
            residual = given.clone()
            return [own(residual, labels, True), residual]

        def theirs(how: Tensor) -> list[Tensor]:
            logs = _log_softmax(how.clone())
            return [_at(logs, labels), _residual(logs, labels).to(how.dtype)]

        return mine, partial(theirs, given), partial(theirs, given.double())

    name = f"labels of {size} {str(dtype).removeprefix('torch.')}"
    return CHOICES.choose(lambda each: each.label_scores, name, (logits,), work)


def _check_once() -> None:
    """Raise GymError where autograd would go through a backward pass, which holds more than it could see."""
    if torch.is_grad_enabled():
        raise GymError(
            "label_log_probs has no second derivative",
            where="gym_torch.model.linear_head",
            fix="compute the loss with gym_torch.model.log_probs.map_logits",
        )


def _at(logs: Tensor, labels: Tensor) -> Tensor:
    return logs.gather(1, labels[:, None]).squeeze(1)


def _residual(logs: Tensor, labels: Tensor) -> Tensor:
    """Overwrite log-probabilities with `p - 1`."""
    index = labels[:, None]
    residual = logs.exp_()
    return residual.scatter_(1, index, residual.gather(1, index) - 1)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add `left @ right` to `total` in place, rounding no sum to a lower precision than that of `total`."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
        return
    size = max(1, -(-len(total) // PARTS))
    for into, part in zip(total.split(size), left.split(size), strict=True):
        into.add_(part @ right)
