"""Log-probabilities of labels without ever holding all logits.

The language-model head turns `[n, dim]` hidden states into `[n, vocabulary]` logits, by far the largest tensor of
a training step. Here it is applied to a chunk of rows at a time, and applied again in the backward pass instead of
keeping its output: at any moment the logits of one chunk exist. Where one chunk is all there is, it is kept. For a plain
linear head, which nearly all are, `linear_head` does the same with less.

This module knows nothing about batches, losses or which positions matter: callers select the rows first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from gym_core import GymError
from gym_torch.model.hidden_states import backbone_states, no_cache, take_whole
from gym_torch.model.linear_head import Also, linear_statistics, nothing_else
from gym_torch.patched_forward import called_alone

CHUNK = 256  #: rows of logits held at once
CHUNK_BYTES = 150 * 2**20  #: what they may take in fp32: 256 rows for a vocabulary of 150,000


def rows_at_once(vocabulary: int) -> int:
    """Return how many rows of logits to hold: few rows would waste time on a small vocabulary, many memory on a large one."""
    return max(64, CHUNK_BYTES // (4 * vocabulary))


def map_logits(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    fn: Callable[[Tensor, slice], Tensor],
    chunk: int = CHUNK,
) -> Tensor:
    """Apply `fn` to the logits of `hidden`, chunk by chunk, recomputing each chunk in the backward pass.

    For whatever needs the whole vocabulary of a position: label log-probabilities, entropy, a KL divergence.

    Args:
        hidden: `[n, dim]`, any float type; `n` may be 0.
        head: maps `[rows, dim]` to `[rows, vocabulary]`. Frozen, tied and adapter-wrapped heads all work, dropout
            included: gradients reach whatever parameters it uses.
        fn: gets fp32 logits `[rows, vocabulary]` (fp64 when the head computes in fp64) and the slice of `hidden`
            they belong to, and returns `[rows, ...]`. It may close over tensors that need gradients.
        chunk: most rows at once. It changes memory and speed, not the result beyond rounding.

    Returns:
        The results of `fn` concatenated along the rows, `[n, ...]`.

    """

    def apply(rows: Tensor, start: int) -> Tensor:
        logits = head(rows)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return fn(logits, slice(start, start + len(rows)))

    # One `split` rather than a slice a chunk: its backward joins the gradients once, where every slice would fill
    # an [n, dim] tensor of its own.
    pieces = hidden.split(chunk)
    if len(pieces) == 1 or not torch.is_grad_enabled():
        return torch.cat([apply(rows, index * chunk) for index, rows in enumerate(pieces)])
    return torch.cat([checkpoint(apply, rows, index * chunk, use_reentrant=False) for index, rows in enumerate(pieces)])


def label_log_probs(hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor, chunk: int = CHUNK) -> Tensor:
    """Return the first row of `label_statistics`: `[n]`, fp32, differentiable in `hidden` and in the head's parameters."""
    return label_statistics(hidden, head, targets, nothing_else, chunk)[0]


def label_statistics(
    hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor, also: Also, chunk: int = CHUNK
) -> Tensor:
    """Return `log p(target)` of every row and, without a gradient, what `also` says of its logits: `[1 + k, n]`, fp32.

    Args:
        hidden: `[n, dim]`, the hidden states that predict the targets.
        head: maps `[rows, dim]` to logits `[rows, vocabulary]`; see `map_logits`.
        targets: `[n]` int64 token ids.
        also: maps some rows of logits, in the dtype of the product, and their targets to numbers `[k, rows]`.
        chunk: most rows of logits at once.

    """
    states, project = scaled_before(hidden, head)
    weight = plain_weight(project)
    if weight is not None:
        return linear_statistics(states, weight, targets, chunk, also)

    def statistics(logits: Tensor, rows: slice) -> Tensor:
        said = also(logits.detach().clone(), targets[rows]).to(logits.dtype)
        # log_softmax is one fused kernel on a CPU; gather minus logsumexp is five, at half the speed.
        return torch.cat([logits.log_softmax(1).gather(1, targets[rows, None]), said.T], 1)

    return map_logits(hidden, head, statistics, chunk).T


def nucleus_log_probs(
    hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor, kept: Tensor, chunk: int = CHUNK
) -> Tensor:
    """Return `log p(target)` of every row among the tokens that could be drawn there, `[n]`, as `label_log_probs` does.

    The set of tokens is a constant (a sampling mask, DeepSeek-V3.2, arXiv:2512.02556, section 3.1): two policies that are
    compared over one set are distributions over the same actions.

    Args:
        hidden: `[n, dim]`, the hidden states that predict the targets.
        head: maps `[rows, dim]` to logits `[rows, vocabulary]`; see `map_logits`.
        targets: `[n]` int64 token ids, each in the set of its row.
        kept: `[m, 2]` int64, a row and a token of its set each, in the order of the rows; see `nucleus_tokens`.
        chunk: most rows of logits at once.

    """
    rows_of = kept[:, 0].contiguous()

    def log_probs(logits: Tensor, rows: slice) -> Tensor:
        out = _left_out(logits, kept, rows_of, rows)
        return logits.masked_fill(out, -torch.inf).log_softmax(1).gather(1, targets[rows, None]).squeeze(1)

    return map_logits(hidden, head, log_probs, chunk)


def log_probs_and_entropies(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    targets: Tensor,
    kept: Tensor | None = None,
    chunk: int = CHUNK,
    other: Callable[[Tensor, slice], Tensor] | None = None,
) -> Tensor:
    """Return `log p(target)` and the entropy of the distribution of every row, in nats, `[2, n]`; both have gradients.

    `other` returns, from the logits at some rows and the slice that they are, those of another distribution q there: then
    KL(p || q) stands below them, `[3, n]`, over the tokens that both vocabularies have. Other arguments as those of
    `nucleus_log_probs`; with `kept` all are of the distributions over these tokens alone. The logits of one chunk exist at a
    time, and are computed again in the backward pass.
    """
    rows_of = None if kept is None else kept[:, 0].contiguous()
    if kept is None:
        # with the rounding of `label_log_probs`: policies are compared of which one had no entropy asked for
        hidden, head = scaled_before(hidden, head)

    def both(logits: Tensor, rows: slice) -> Tensor:
        finite, out = logits, None
        if kept is not None and rows_of is not None:
            out = _left_out(logits, kept, rows_of, rows)
            logits, finite = logits.masked_fill(out, -torch.inf), logits.masked_fill(out, 0.0)
        scores = logits.log_softmax(1)
        # log-sum-exp less the mean logit: -p log p has no gradient where p is 0.
        entropy = logits.logsumexp(1) - (scores.exp() * finite).sum(1)
        found = [scores.gather(1, targets[rows, None])[:, 0], entropy]
        if other is not None:
            found.append(_kl(logits, other(finite, rows), out))
        return torch.stack(found, 1)

    return map_logits(hidden, head, both, chunk).T


def _kl(logits: Tensor, other: Tensor, out: Tensor | None) -> Tensor:
    """Return KL(p || q) of each row, over the tokens that both have and that are not `out`; 0 where there is none.

    What stands in brackets has no gradient of its own: its sum over p is that of 1, and the rounding of 0 would be learnt from
    where p is q, as an optimizer that normalizes gradients makes whole steps of it.
    """
    count = min(logits.shape[1], other.shape[1])
    own, known = logits[:, :count], other[:, :count]
    if out is None:
        own, known = own.log_softmax(1), known.log_softmax(1)
        return (own.exp() * (own - known).detach()).sum(1)
    out, least = out[:, :count], torch.finfo(logits.dtype).min  # -inf in all of a row would make its gradient NaN
    own, known = (each.masked_fill(out, least).log_softmax(1) for each in (own, known))
    return (own.exp() * (own - known).detach().masked_fill(out, 0.0)).sum(1)


def _left_out(logits: Tensor, kept: Tensor, rows_of: Tensor, rows: slice) -> Tensor:
    """Return which logits of some rows are of tokens that could not be drawn; `rows_of` is the first column of `kept`."""
    ends = torch.searchsorted(rows_of, torch.tensor([rows.start, rows.stop], device=rows_of.device))
    own = kept[int(ends[0]) : int(ends[1])]
    out = torch.ones_like(logits, dtype=torch.bool)
    out[own[:, 0] - rows.start, own[:, 1]] = False
    return out


@dataclass(frozen=True)
class Head:
    """From the last hidden state to the logits a model reports: projection, then scale, then soft cap; then temperature."""

    project: Callable[[Tensor], Tensor]  #: [rows, dim] -> [rows, vocabulary]
    scale: float = 1.0
    softcap: float | None = None  #: largest absolute logit, as in Gemma 2 (arXiv:2408.00118, section 2)
    temperature: float = 1.0  #: divides the logits, where the distribution that was sampled from is to be trained

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map `[rows, dim]` to logits `[rows, vocabulary]`."""
        logits = self.project(hidden)
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        if self.temperature == 1.0:
            return logits
        return logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature


def scaled_before(hidden: Tensor, head: Callable[[Tensor], Tensor]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return states and a head with the same logits; a plain projection alone where all else is a factor on the states."""
    if not isinstance(head, Head) or head.softcap is not None or plain_weight(head.project) is None:
        return hidden, head
    factor = head.scale / head.temperature
    return hidden if factor == 1.0 else hidden * factor, head.project


def plain_weight(project: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Return the weight where calling `project` is a product with it and nothing else happens or looks on."""
    if not isinstance(project, nn.Linear) or type(project).forward is not nn.Linear.forward or project.bias is not None:
        return None
    if not called_alone(project) or is_traceable_wrapper_subclass(project.weight):
        return None  # watched, computed otherwise, quantized, or in shards
    return project.weight


#: What model families call the largest absolute logit.
_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
#: What model families call the factor on their logits, and the power at which it enters.
_SCALES = {"logit_scale": 1, "lm_head_multiplier": 1, "output_multiplier": 1, "logits_scaling": -1}


def head_of(model: PreTrainedModel) -> Head:
    """Return the head of a causal language model, checked against the model's own logits.

    Raises:
        GymError: the model does something after its projection that is not known here.

    """
    head = declared_head(model)
    if not _agrees(model, head):
        take_whole(type(model))
        if not _agrees(model, head):
            raise GymError(
                f"{type(model).__name__} changes its logits in a way that Gym does not know",
                where="gym_torch.model.log_probs",
                fix="use a model of another family, or add its scale to gym_torch.model.log_probs",
            )
    return head


def declared_head(model: PreTrainedModel) -> Head:
    """Return the head as the configuration of the model describes it, unchecked."""
    options = model.config.get_text_config().to_dict()
    scale = 1.0
    for name, power in _SCALES.items():
        if options.get(name):
            scale *= float(options[name]) ** power
    softcap = next((float(options[name]) for name in _SOFTCAPS if options.get(name)), None)
    return Head(model.get_output_embeddings(), scale, softcap)


@torch.no_grad()
def _agrees(model: PreTrainedModel, head: Head) -> bool:
    """Compare `head` over the states with the model itself on two tokens."""
    training = model.training
    model.eval()
    tokens = torch.tensor([[1, 2]], device=model.device)
    expected = model(input_ids=tokens, **no_cache(type(model).forward)).logits.float()
    states = backbone_states(model, input_ids=tokens)
    model.train(training)
    if not expected.isfinite().all():
        raise GymError(
            f"{type(model).__name__} computes logits that are not finite",
            key="train.precision",
            fix="in fp16, which ends at 65504, set bf16 or fp32; else start from sound weights",
        )
    if isinstance(head.project, nn.Linear) and head.project.in_features != states.shape[-1]:
        return False
    found = head(states).float()
    rounding = 1e-4 if model.dtype == torch.float32 else 2e-2
    close = rounding * float(expected.abs().max()) + 1e-6
    return torch.allclose(found, expected, rtol=0, atol=close)
